#include "train/train_step.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "nn/loss.h"
#include "shard/grad_norm.h"
#include "util/error.h"

namespace fsdp::train {

StepResult TrainStep::run(const StepPosition& position) {
  shard::Engine& engine = parts_.engine;
  engine.zero_gradients();
  const int64_t micro_steps = options_.gradient_accumulation_steps;
  double local_loss = 0;
  for (int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
    engine.set_requires_gradient_sync(!options_.no_sync || micro_step + 1 == micro_steps);
    local_loss += run_micro_batch(position, micro_step);
  }

  StepResult result;
  share_loss(local_loss, result);
  double loss_scale = parts_.scaler ? parts_.scaler->scale() : 1.0;
  result.grad_norm = shard::clip_grad_norm(engine, options_.max_grad_norm, options_.norm_type, loss_scale);
  // Both numbers come out of all-reduces, so every rank sees the same and decides alike.
  bool finite = std::isfinite(result.grad_norm);
  bool can_go_on = parts_.scaler ? parts_.scaler->update(!finite) : finite;
  if (!std::isfinite(result.loss) || !can_go_on) report_divergence(position, result);
  result.skipped = !finite;
  if (finite) update_shards(position.lr);
  return result;
}

double TrainStep::run_micro_batch(const StepPosition& position, int64_t micro_step) {
  data::Batch batch = parts_.batches.batch(position.first_global_sample, micro_step);
  at::Tensor loss = nn::loss_of(parts_.model, batch.inputs, batch.targets);
  if (options_.gradient_accumulation_steps > 1) {
    loss = loss / static_cast<double>(options_.gradient_accumulation_steps);
  }
  (parts_.scaler ? loss * parts_.scaler->scale() : loss).backward();
  return loss.item<double>();
}

/// The mean loss over ranks, and whether any is to stop, in one collective.
void TrainStep::share_loss(double local_loss, StepResult& result) {
  comm::Communicator& communicator = parts_.engine.communicator();
  at::Tensor sums = at::empty({2}, at::kDouble);
  double* values = sums.data_ptr<double>();
  values[0] = local_loss;
  values[1] = parts_.stop_requested && parts_.stop_requested() ? 1 : 0;
  communicator.all_reduce(sums, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
  result.loss = values[0] / communicator.world_size();
  result.stop = values[1] > 0;
}

void TrainStep::update_shards(double lr) {
  std::vector<at::Tensor> gradients;
  for (const auto& unit : parts_.engine.units()) gradients.push_back(unit->storage().shard_gradient());
  parts_.optimizer.step(gradients, lr);
}

void TrainStep::report_divergence(const StepPosition& position, const StepResult& result) {
  std::string unit = shard::first_unit_that_is_not_finite(parts_.engine);
  throw comm::AgreedError(
      util::ErrorKind::kDiverged,
      util::concat("training diverged at step ", position.step, ": loss ", result.loss, ", gradient norm ",
                   result.grad_norm,
                   unit.empty() ? "" : util::concat(", not finite first in the backward of unit ", unit),
                   "; the weights were not updated; go on from the last checkpoint with a lower "
                   "optimizer.lr, a longer warm-up or a smaller training.max_grad_norm"));
}

}  // namespace fsdp::train
