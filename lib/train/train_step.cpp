#include "train/train_step.h"

#include <ATen/ops/full.h>

#include <cmath>

#include "nn/loss.h"
#include "shard/grad_norm.h"
#include "util/error.h"

namespace fsdp::train {

TrainStep::TrainStep(nn::Stage& model, shard::Engine& engine, optim::Optimizer& optimizer,
                     const data::TrainLoader& loader, const StepOptions& options)
    : model_(model), engine_(engine), optimizer_(optimizer), loader_(loader), options_(options) {}

StepResult TrainStep::run(const StepPosition& position) {
  engine_.zero_gradients();
  double local_loss = 0;
  for (int64_t micro_step = 0; micro_step < options_.gradient_accumulation_steps; ++micro_step) {
    local_loss += run_micro_batch(position, micro_step);
  }

  StepResult result;
  result.loss = mean_over_ranks(engine_.communicator(), local_loss, "loss");
  result.grad_norm = shard::clip_grad_norm(engine_, options_.max_grad_norm, options_.norm_type);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    // Both numbers come out of all-reduces, so every rank sees the same and throws.
    throw comm::AgreedError(
        util::ErrorKind::kDiverged,
        util::concat(
            "training diverged at step ", position.step, ": loss ", result.loss, ", gradient norm ",
            result.grad_norm,
            "; the weights were not updated; go on from the last checkpoint with a lower optimizer.lr, a "
            "longer warm-up or a smaller training.max_grad_norm"));
  }
  update_shards(position.lr);
  return result;
}

double TrainStep::run_micro_batch(const StepPosition& position, int64_t micro_step) {
  data::Batch batch = loader_.batch(position.first_global_sample, micro_step);
  at::Tensor logits = model_.forward(batch.inputs);
  at::Tensor loss =
      nn::next_token_loss(logits, batch.targets) / static_cast<double>(options_.gradient_accumulation_steps);
  logits.reset();  // the graph keeps what backward needs
  loss.backward();
  return loss.item<double>();
}

void TrainStep::update_shards(double lr) {
  std::vector<at::Tensor> gradients;
  for (const auto& unit : engine_.units()) gradients.push_back(unit->storage().shard_gradient());
  optimizer_.step(gradients, lr);
}

double mean_over_ranks(comm::Communicator& communicator, double value, const char* what) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  communicator.all_reduce(sum, comm::ReduceOp::kSum, {.unit = what})->wait();
  return sum.item<double>() / communicator.world_size();
}

}  // namespace fsdp::train
