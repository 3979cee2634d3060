#include "run/train/train_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "run/train/arriving_gradients.h"
#include "shard/engine/engine.h"
#include "state/optim/engine_shards.h"

namespace fsdp::train {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
/// Nothing is computed, so no tokens are counted.
const StepResult kWithoutTargets{.loss = kNone,
                                 .grad_norm = kNone,
                                 .skipped = true,
                                 .without_targets = true,
                                 .skip_reason = "none of its targets counts"};

}  // namespace

TrainStep::TrainStep(const StepParts& parts, const StepOptions& options) : parts_(parts), options_(options) {
  const bool on_host = parts.scaler != nullptr || parts.guard != nullptr ||
                       std::ranges::any_of(parts.engine.units(), [](const auto& unit) {
                         return unit->options().storage.cpu_offload;
                       });
  if (options.may_read_late && !on_host && std::isfinite(options.norm_type) &&
      parts.optimizer.scales_on_device()) {
    outcome_.emplace(parts.engine.communicator().device());
  }
  const bool arrive_on_host = computes_on_host() || parts.engine.options().move_grads_to_cpu;
  updates_as_gradients_arrive_ = arrive_on_host && !outcome_ && options.max_grad_norm == 0 &&
                                 parts.scaler == nullptr && parts.guard == nullptr &&
                                 parts.optimizer.updates_alone();
}

bool TrainStep::computes_on_host() const { return parts_.engine.communicator().device().is_cpu(); }

StepResult TrainStep::run(StepPosition position) {
  if (position.micro_batches == 0) position.micro_batches = options_.gradient_accumulation_steps;
  shard::Engine& engine = parts_.engine;
  StepBatches batches(parts_.batches, engine, options_.counts_vary, position);
  StepUpdate step{.position = position, .result = {.counted = batches.counted(), .tokens = batches.tokens()}};
  if (batches.are_without_targets()) {
    if (outcome_ && position.reads_outcome) {
      StepResult before{.is_read = false};
      read_outcome(before);  // throws if an earlier step has diverged
    }
    step.result = kWithoutTargets;
    return conclude(std::move(step), /*arriving=*/nullptr);
  }
  ArrivingGradients arriving(engine, parts_.optimizer,
                             {.norm_type = options_.norm_type,
                              .clip_grad_value = options_.clip_grad_value,
                              .updates = updates_as_gradients_arrive_,
                              .frees = computes_on_host(),
                              .lr = position.lr,
                              .on_device = outcome_.has_value()});
  engine.zero_gradients();
  const at::Tensor loss_on_device = accumulate_gradients(batches, arriving);
  if (outcome_) return update_without_waiting(std::move(step), loss_on_device, arriving);
  step.local_loss = loss_on_device.item<double>();
  share_loss(step.local_loss, step.result);
  step.result.loss_sum = step.result.loss;
  step.result.losses = 1;
  const double loss_scale = parts_.scaler ? parts_.scaler->scale() : 1.0;
  step.norms = arriving.norms();
  step.clipping = shard::clipping(engine, options_.max_grad_norm, options_.norm_type, loss_scale, step.norms);
  step.result.grad_norm = step.clipping.norm;
  engine.communicator().check();
  return conclude(std::move(step), &arriving);
}

StepResult TrainStep::conclude(StepUpdate step, ArrivingGradients* arriving) {
  if (step.result.skipped) share_requests(step.result);  // otherwise share_loss() has shared them
  return update(std::move(step), arriving);
}

StepResult TrainStep::update(StepUpdate step, ArrivingGradients* arriving) {
  shard::Engine& engine = parts_.engine;
  StepResult& result = step.result;
  if (result.skipped) return std::move(result);
  const double loss_scale = parts_.scaler ? parts_.scaler->scale() : 1.0;
  // Loss and norm come out of all-reduces, so every rank sees the same numbers and decides alike.
  const bool finite = std::isfinite(result.grad_norm);
  const bool can_go_on = parts_.scaler ? parts_.scaler->update(!finite) : finite;
  if (!finite && can_go_on && std::isfinite(result.loss)) {
    parts_.scaler->count_skipped_step();
    result.skip_reason = concat("its gradients overflow; the loss scale is now ", parts_.scaler->scale());
  } else if (!passes_guard(step, std::isfinite(result.loss) && can_go_on)) {
    // skip_reason says why nothing is updated.
  } else if (updates_as_gradients_arrive_) {
    arriving->finish_updates();
  } else {
    if (options_.clip_grad_value > 0) shard::clip_grad_value(engine, options_.clip_grad_value, loss_scale);
    parts_.optimizer.step(optim::shard_gradients(engine), step.position.lr, step.clipping.scale);
  }
  result.skipped = !result.skip_reason.empty();
  return std::move(result);
}

StepResult TrainStep::update_without_waiting(StepUpdate step, const at::Tensor& local_loss,
                                             const ArrivingGradients& arriving) {
  at::NoGradGuard no_grad;
  const kernels::BelowAutograd below;
  shard::Engine& engine = parts_.engine;
  comm::Communicator& communicator = engine.communicator();
  const StepPosition& position = step.position;
  StepResult& result = step.result;
  result.is_read = false;
  share_requests(result);
  const at::Tensor norm_sum =
      shard::local_norm_sum(engine, options_.norm_type, arriving.squares()).to(local_loss.device());
  const at::Tensor sums = at::stack({local_loss, norm_sum});
  communicator
      .all_reduce(sums, comm::ReduceOp::kSum, {.unit = "loss and gradient norm", .pass = "optimizer"})
      ->wait();
  outcome_->decide(sums, local_loss,
                   {.ranks = static_cast<double>(communicator.world_size()),
                    .norm_type = options_.norm_type,
                    .max_grad_norm = options_.max_grad_norm,
                    .step = static_cast<double>(position.step)});
  if (options_.clip_grad_value > 0) shard::clip_grad_value(engine, options_.clip_grad_value);
  parts_.optimizer.step_scaled_on_device(optim::shard_gradients(engine), position.lr,
                                         outcome_->gradient_scale());
  unread_.push_back(position);
  if (position.reads_outcome) read_outcome(result);
  return std::move(result);
}

void TrainStep::read_outcome(StepResult& result) {
  if (std::exchange(result.is_read, true)) return;
  const kernels::StepOutcome outcome = outcome_->read();
  parts_.engine.communicator().check();
  result.loss = outcome.loss;
  result.grad_norm = outcome.grad_norm;
  result.loss_sum = outcome.loss_sum - std::exchange(loss_sum_read_, outcome.loss_sum);
  result.losses = static_cast<int64_t>(unread_.size());
  const auto diverged =
      std::ranges::find(unread_, static_cast<int64_t>(outcome.diverged_step), &StepPosition::step);
  if (diverged != unread_.end()) {
    result.loss = outcome.diverged_loss;
    result.grad_norm = outcome.diverged_grad_norm;
    report_divergence({.position = *diverged, .result = result, .local_loss = outcome.diverged_local_loss},
                      /*gradients_are_left=*/diverged + 1 == unread_.end());
  }
  unread_.clear();
}

at::Tensor TrainStep::accumulate_gradients(StepBatches& batches, ArrivingGradients& arriving) {
  shard::Engine& engine = parts_.engine;
  at::Tensor losses = at::zeros({}, at::TensorOptions(at::kDouble).device(engine.communicator().device()));
  for (int64_t i = 0; i < batches.size(); ++i) {
    const bool is_last = i + 1 == batches.size();
    engine.set_requires_gradient_sync(!options_.no_sync || is_last);
    engine.set_requires_all_reduce(is_last);
    std::optional<shard::GradientUse> use;
    if (is_last && arriving.takes_gradients()) {
      use.emplace(engine, [&arriving](size_t unit) { arriving.take(unit); });
    }
    losses += run_micro_batch(batches.take(i));
  }
  return losses;
}

bool TrainStep::passes_guard(StepUpdate& step, bool finite) {
  StepResult& result = step.result;
  if (!finite && !(parts_.guard && parts_.guard->skips_nonfinite())) report_divergence(step);
  if (!parts_.guard) return true;
  result.skip_reason =
      finite ? parts_.guard->outlier(result.loss, result.grad_norm)
             : concat("its loss ", result.loss, " or gradient norm ", result.grad_norm, " is not finite");
  if (result.skip_reason.empty()) {
    parts_.guard->accept(result.loss, result.grad_norm);
    return true;
  }
  if (!parts_.guard->skip()) report_divergence(step);
  return false;
}

at::Tensor TrainStep::run_micro_batch(const MicroBatch& micro_batch) {
  nn::LossOptions how = options_.loss;
  if (options_.dropout_key) how.dropout = {.key = *options_.dropout_key};
  const double loss_scale = parts_.scaler ? parts_.scaler->scale() : 1;
  if (parts_.scaler) how.terms.expected_gradient = loss_scale / micro_batch.divisor;
  const at::Tensor loss = parts_.objective->loss(parts_.model, micro_batch, how);
  (parts_.scaler ? loss * loss_scale : loss).backward();
  return loss.detach().to(at::kDouble);
}

std::vector<bool> requested_on_any_rank(comm::Communicator& communicator, const std::vector<bool>& requests) {
  const at::Tensor sums = at::tensor(std::vector<int64_t>(requests.begin(), requests.end()), at::kLong);
  communicator.all_reduce(sums, comm::ReduceOp::kMax, {.unit = "request to stop"})->wait();
  const auto* first = sums.const_data_ptr<int64_t>();
  return std::vector<bool>(first, first + sums.numel());
}

void TrainStep::share_requests(StepResult& result) {
  if (!parts_.stop_requested) return;
  result.stop = requested_on_any_rank(parts_.engine.communicator(), {parts_.stop_requested()}).front();
}

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

std::string TrainStep::described_samples(const StepPosition& position, double local_loss) {
  comm::Communicator& communicator = parts_.engine.communicator();
  at::Tensor flags = at::zeros({communicator.world_size()}, at::kDouble);
  flags.data_ptr<double>()[communicator.rank()] = std::isfinite(local_loss) ? 0 : 1;
  communicator.all_reduce(flags, comm::ReduceOp::kSum, {.unit = "finite losses"})->wait();
  std::string ranks;
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    if (flags.data_ptr<double>()[rank] != 0) ranks += concat(ranks.empty() ? "" : ", ", rank);
  }
  std::string text;
  if (position.samples > 0) {
    text = concat(", samples ", position.first_global_sample, " to ",
                  position.first_global_sample + position.samples - 1, " of the run");
  }
  return ranks.empty() ? text : concat(text, ", loss not finite on rank ", ranks);
}

void TrainStep::report_divergence(const StepUpdate& step, bool gradients_are_left) {
  const StepResult& result = step.result;
  const std::string samples = described_samples(step.position, step.local_loss);
  const std::string unit =
      gradients_are_left ? shard::first_unit_that_is_not_finite(parts_.engine, step.norms) : std::string();
  std::string where, how;
  if (!unit.empty()) {
    where = concat(", not finite first in the backward of unit ", unit);
  } else if (!result.skip_reason.empty()) {
    where = concat(", the largest gradient in unit ", shard::unit_with_largest_gradient(parts_.engine));
  }
  if (!result.skip_reason.empty()) {
    how = concat("; ", result.skip_reason, ", and this is skipped step ", parts_.guard->skipped_in_a_row(),
                 " in a row, but training.max_skipped_steps allows ", parts_.guard->max_skipped_steps());
  }
  throw comm::AgreedError(
      ErrorKind::kDiverged,
      concat(
          "training diverged at step ", step.position.step, samples, ": loss ", result.loss,
          ", gradient norm ", result.grad_norm, where, how, "; the weights were ",
          updates_as_gradients_arrive_ ? "updated as the gradients arrived, and are unusable" : "not updated",
          "; resume from the last checkpoint with a lower optimizer.lr, a longer warm-up or a "
          "smaller training.max_grad_norm"));
}

}  // namespace fsdp::train
