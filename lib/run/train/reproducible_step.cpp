#include "run/train/reproducible_step.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/util/error.h"
#include "model/kernels/sample_sums.h"
#include "shard/engine/engine.h"
#include "shard/engine/reduce/sample_reduction.h"

namespace fsdp::train {

ReproducibleStep::ReproducibleStep(const StepParts& parts, const StepOptions& options,
                                   const SamplePlaces& places, std::function<bool()> leave_requested)
    : TrainStep(parts, options), places_(places), leave_requested_(std::move(leave_requested)) {
  FSDP_CHECK(parts.engine.options().sums_by_sample);
  updates_as_gradients_arrive_ = false;
}

at::Tensor ReproducibleStep::accumulate_gradients(StepBatches& batches, ArrivingGradients&) {
  shard::Engine& engine = parts_.engine;
  const auto& [rank, ranks, batch_is_sample] = places_;
  pending_.reset();
  leaves_ = batches.size() * ranks;
  if (begun_ && begun_->all != leaves_) begun_.reset();
  const std::optional<BegunStep> begun = std::exchange(begun_, std::nullopt);
  const int64_t begin = first_leaf_ = begun ? begun->leaves : 0,
                rounds = (leaves_ - begin + ranks - 1) / ranks;
  const bool may_break_off = leave_requested_ && batches.counted() == 0;
  shard::begin_sample_sums(engine, {rounds, {begin, leaves_}, may_break_off},
                           begun ? begun->sums() : std::vector<shard::SampleSums>{});
  losses_ = at::Tensor();
  if (begun) {
    const int64_t known = begun->losses.numel() / leaves_ * begin;
    losses_ = at::zeros_like(begun->losses);
    losses_.narrow(0, 0, known).copy_(begun->losses.narrow(0, 0, known));
  }
  shared_losses_.clear();
  const int64_t skipped_samples = begin * (batches.position().samples / leaves_);
  double own_losses = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    MicroBatch micro_batch = batches.take(i, skipped_samples);
    micro_batch.divisor = 1;
    const at::Tensor& targets = micro_batch.batch.targets;
    const int64_t samples = batch_is_sample ? 1 : targets.size(0);
    targets_ = static_cast<double>(batches.counted() > 0 ? batches.counted()
                                                         : std::max<int64_t>(leaves_ * targets.numel(), 1));
    if (!losses_.defined()) losses_ = at::zeros({leaves_ * samples}, at::kDouble);
    kernels::SampleSums sums(samples, targets_);
    run_micro_batch(micro_batch);
    const int64_t first = begin + i * ranks, end = std::min(first + ranks, leaves_);
    if (first + rank < end) {  // in the last round some may have samples of the next step, which nobody adds
      std::ranges::copy(sums.losses, losses_.data_ptr<double>() + (first + rank) * samples);
      own_losses = std::accumulate(sums.losses.begin(), sums.losses.end(), own_losses);
    }
    if (!may_break_off) continue;
    shared_losses_.push_back(
        {share_losses(losses_.narrow(0, first * samples, (end - first) * samples)), end});
  }
  shard::require_all_sample_sums(engine);
  return at::full({}, own_losses / targets_, at::kDouble);
}

/// Each loss is one rank's, and 0 on the others.
std::unique_ptr<comm::Work> ReproducibleStep::share_losses(const at::Tensor& losses) {
  return parts_.engine.communicator().all_reduce(losses, comm::ReduceOp::kSum, {.unit = "losses of samples"});
}

/// Adds the losses in the order of their samples. Requests are shared last (conclude()).
void ReproducibleStep::share_loss(double /*local_loss*/, StepResult& result) {
  if (shared_losses_.empty()) share_losses(losses_)->wait();
  for (const SharedLosses& each : shared_losses_) each.work->wait();
  const auto* first = losses_.const_data_ptr<double>();
  result.loss = std::accumulate(first, first + losses_.numel(), 0.0) / targets_;
}

StepResult ReproducibleStep::conclude(StepUpdate step, ArrivingGradients*) {
  pending_ = std::move(step);
  if (parts_.stop_requested) {
    std::vector<bool> requests{parts_.stop_requested()};
    if (leave_requested_) requests.push_back(leave_requested_());
    requests = requested_on_any_rank(parts_.engine.communicator(), requests);
    pending_->result.stop = requests.front();
    pending_->result.leave = leave_requested_ && requests.back();
  }
  return finish();
}

StepResult ReproducibleStep::finish() {
  StepUpdate step = *std::exchange(pending_, std::nullopt);
  leaves_ = 0;
  return update(std::move(step), /*arriving=*/nullptr);
}

std::optional<BegunStep> ReproducibleStep::begun() {
  if (leaves_ == 0) return begun_;
  BegunStep step{
      .leaves = first_leaf_, .all = leaves_, .units = shard::begun_sample_sums(parts_.engine), .losses = {}};
  try {
    for (const auto& [work, leaves] : shared_losses_) {
      work->wait();
      step.leaves = leaves;
    }
  } catch (const std::exception&) {
    // The step that failed reports this error.
  }
  for (const auto& unit : step.units)
    step.leaves = std::min(step.leaves, unit.empty() ? 0 : unit.back().leaves);
  if (step.leaves == 0 || !step.has(step.leaves)) return std::nullopt;
  step.losses = losses_;
  return step;
}

}  // namespace fsdp::train
