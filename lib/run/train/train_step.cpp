#include "run/train/train_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/sample_sums.h"
#include "run/train/arriving_gradients.h"
#include "shard/state/grad_norm.h"
#include "state/optim/engine_shards.h"

namespace fsdp::train {

TrainStep::TrainStep(const Parts& parts, const StepOptions& options) : parts_(parts), options_(options) {
  const bool on_host = parts.scaler != nullptr || parts.guard != nullptr ||
                       std::ranges::any_of(parts.engine.units(), [](const auto& unit) {
                         return unit->options().storage.cpu_offload;
                       });
  if (options.may_read_late && !on_host && std::isfinite(options.norm_type) &&
      parts.optimizer.scales_on_device()) {
    outcome_.emplace(parts.engine.communicator().device());
  }
  const bool arrive_on_host = computes_on_host() || parts.engine.options().move_grads_to_cpu;
  FSDP_CHECK(options.by_sample.has_value() == parts.engine.options().sums_by_sample);
  updates_as_gradients_arrive_ = arrive_on_host && !options.by_sample && !outcome_ &&
                                 options.max_grad_norm == 0 && parts.scaler == nullptr &&
                                 parts.guard == nullptr && parts.optimizer.updates_alone();
}

bool TrainStep::computes_on_host() const { return parts_.engine.communicator().device().is_cpu(); }

StepResult TrainStep::run(const StepPosition& position) {
  pending_.reset();
  std::vector<MicroBatch> counted;
  if (options_.counts_vary) {
    counted = batches_with_shares(position, micro_batches(position));
    if (counted_ == 0) return step_without_targets(position);
  }
  shard::Engine& engine = parts_.engine;
  ArrivingGradients arriving(engine, parts_.optimizer,
                             {.norm_type = options_.norm_type,
                              .clip_grad_value = options_.clip_grad_value,
                              .updates = updates_as_gradients_arrive_,
                              .frees = computes_on_host(),
                              .lr = position.lr});
  const at::Tensor loss_on_device = accumulate_gradients(position, arriving, std::move(counted));
  if (outcome_) return update_without_waiting(position, loss_on_device);
  const auto local_loss = loss_on_device.item<double>();

  StepResult result;
  result.counted = counted_;
  result.tokens = tokens_;
  share_loss(local_loss, result);
  const double loss_scale = parts_.scaler ? parts_.scaler->scale() : 1.0;
  const shard::Clipping clipping =
      shard::clipping(engine, options_.max_grad_norm, options_.norm_type, loss_scale, arriving.norms());
  result.grad_norm = clipping.norm;
  Pending step{position, local_loss, clipping, arriving.norms(), result};
  if (!options_.by_sample) return update(std::move(step), &arriving);
  pending_ = std::move(step);
  share_requests(pending_->result);
  return finish();
}

StepResult TrainStep::finish() {
  Pending step = std::move(*pending_);
  pending_.reset();
  leaves_ = 0;
  return update(std::move(step), /*arriving=*/nullptr);
}

StepResult TrainStep::update(Pending step, ArrivingGradients* arriving) {
  shard::Engine& engine = parts_.engine;
  StepResult& result = step.result;
  if (result.without_targets) return std::move(result);
  const double loss_scale = parts_.scaler ? parts_.scaler->scale() : 1.0;
  // Loss and norm come out of all-reduces, so every rank sees the same numbers and decides alike.
  const bool finite = std::isfinite(result.grad_norm);
  const bool can_go_on = parts_.scaler ? parts_.scaler->update(!finite) : finite;
  if (!finite && can_go_on && std::isfinite(result.loss)) {
    parts_.scaler->count_skipped_step();
    result.skip_reason =
        util::concat("its gradients overflow; the loss scale is now ", parts_.scaler->scale());
  } else if (!passes_guard(step.position, step.local_loss, std::isfinite(result.loss) && can_go_on,
                           step.norms, result)) {
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

StepResult TrainStep::update_without_waiting(const StepPosition& position, const at::Tensor& local_loss) {
  at::NoGradGuard no_grad;
  const kernels::BelowAutograd below;
  shard::Engine& engine = parts_.engine;
  comm::Communicator& communicator = engine.communicator();
  StepResult result;
  result.is_read = false;
  result.counted = counted_;
  result.tokens = tokens_;
  share_requests(result);
  const at::Tensor norm_sum = shard::local_norm_sum(engine, options_.norm_type).to(local_loss.device());
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
  return result;
}

void TrainStep::read_outcome(StepResult& result) {
  if (std::exchange(result.is_read, true)) return;
  const kernels::StepOutcome outcome = outcome_->read();
  result.loss = outcome.loss;
  result.grad_norm = outcome.grad_norm;
  const auto diverged =
      std::ranges::find(unread_, static_cast<int64_t>(outcome.diverged_step), &StepPosition::step);
  if (diverged != unread_.end()) {
    result.loss = outcome.diverged_loss;
    result.grad_norm = outcome.diverged_grad_norm;
    report_divergence(*diverged, outcome.diverged_local_loss, /*norms=*/{}, result,
                      /*gradients_are_left=*/diverged + 1 == unread_.end());
  }
  unread_.clear();
}

int64_t TrainStep::micro_batches(const StepPosition& position) const {
  return position.micro_batches > 0 ? position.micro_batches : options_.gradient_accumulation_steps;
}

StepResult TrainStep::step_without_targets(const StepPosition& position) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  StepResult result{.loss = kNone, .grad_norm = kNone, .skipped = true, .without_targets = true};
  result.skip_reason = "none of its targets counts";  // its tokens are not computed, so none are counted
  if (outcome_ && position.reads_outcome) {
    StepResult before{.is_read = false};
    read_outcome(before);  // throws if an earlier step has diverged
  }
  if (!options_.by_sample) {
    share_requests(result);
    return result;
  }
  pending_ = Pending{.position = position, .clipping = {}, .norms = {}, .result = std::move(result)};
  share_requests(pending_->result);
  return finish();
}

at::Tensor TrainStep::accumulate_gradients(const StepPosition& position, ArrivingGradients& arriving,
                                           std::vector<MicroBatch> counted) {
  shard::Engine& engine = parts_.engine;
  engine.zero_gradients();
  if (options_.by_sample) return accumulate_by_sample(position, std::move(counted));
  const int64_t count = micro_batches(position);
  at::Tensor losses = at::zeros({}, at::TensorOptions(at::kDouble).device(engine.communicator().device()));
  for (int64_t i = 0; i < count; ++i) {
    const bool is_last = i + 1 == count;
    engine.set_requires_gradient_sync(!options_.no_sync || is_last);
    engine.set_requires_all_reduce(is_last);
    std::optional<shard::GradientUse> use;
    if (is_last && (updates_as_gradients_arrive_ || engine.options().move_grads_to_cpu)) {
      use.emplace(engine, [&arriving](size_t unit) { arriving.take(unit); });
    }
    const MicroBatch micro_batch =
        options_.counts_vary
            ? std::move(counted[static_cast<size_t>(i)])
            : MicroBatch{parts_.batches.batch(position.first_global_sample, i), static_cast<double>(count)};
    losses += run_micro_batch(micro_batch);
  }
  return losses;
}

at::Tensor TrainStep::accumulate_by_sample(const StepPosition& position, std::vector<MicroBatch> counted) {
  shard::Engine& engine = parts_.engine;
  const auto& [rank, ranks, batch_is_sample] = *options_.by_sample;
  leaves_ = micro_batches(position) * ranks;
  if (begun_ && begun_->all != leaves_) begun_.reset();
  const std::optional<BegunStep> begun = std::exchange(begun_, std::nullopt);
  const int64_t begin = first_leaf_ = begun ? begun->leaves : 0,
                rounds = (leaves_ - begin + ranks - 1) / ranks;
  const bool may_break_off = parts_.leave_requested && !options_.counts_vary;
  engine.begin_sample_sums({rounds, {begin, leaves_}, may_break_off},
                           begun ? begun->sums() : std::vector<shard::SampleSums>{});
  sample_losses_ = at::Tensor();
  if (begun) {
    const int64_t known = begun->losses.numel() / leaves_ * begin;
    sample_losses_ = at::zeros_like(begun->losses);
    sample_losses_.narrow(0, 0, known).copy_(begun->losses.narrow(0, 0, known));
  }
  shared_losses_.clear();
  const int64_t first_sample = position.first_global_sample + begin * (position.samples / leaves_);
  double own_losses = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    const MicroBatch micro_batch{options_.counts_vary ? std::move(counted[static_cast<size_t>(i)].batch)
                                                      : parts_.batches.batch(first_sample, i)};
    const at::Tensor& targets = micro_batch.batch.targets;
    const int64_t samples = batch_is_sample ? 1 : targets.size(0);
    targets_of_step_ = static_cast<double>(
        std::max<int64_t>(options_.counts_vary ? counted_ : leaves_ * targets.numel(), 1));
    if (!sample_losses_.defined()) sample_losses_ = at::zeros({leaves_ * samples}, at::kDouble);
    kernels::SampleSums sums(samples, targets_of_step_);
    run_micro_batch(micro_batch);
    const int64_t first = begin + i * ranks, end = std::min(first + ranks, leaves_);
    if (first + rank < end) {  // in the last round some may have samples of the next step, which nobody adds
      std::ranges::copy(sums.losses, sample_losses_.data_ptr<double>() + (first + rank) * samples);
      own_losses = std::accumulate(sums.losses.begin(), sums.losses.end(), own_losses);
    }
    if (!may_break_off) continue;
    const at::Tensor losses = sample_losses_.narrow(0, first * samples, (end - first) * samples);
    shared_losses_.push_back({share_losses(losses), end});
  }
  engine.require_all_sample_sums();
  return at::full({}, own_losses / targets_of_step_, at::kDouble);
}

std::optional<BegunStep> TrainStep::begun() {
  if (leaves_ == 0) return begun_;
  BegunStep step{.leaves = first_leaf_, .all = leaves_, .units = parts_.engine.begun_sums(), .losses = {}};
  try {
    for (const auto& [work, leaves] : shared_losses_) {
      work->wait();
      step.leaves = leaves;
    }
  } catch (const std::exception&) {
    // As the step.
  }
  for (const auto& unit : step.units)
    step.leaves = std::min(step.leaves, unit.empty() ? 0 : unit.back().leaves);
  if (step.leaves == 0 || !step.has(step.leaves)) return std::nullopt;
  step.losses = sample_losses_;
  return step;
}

bool TrainStep::passes_guard(const StepPosition& position, double local_loss, bool finite,
                             const shard::KnownNorms& norms, StepResult& result) {
  if (!finite && !(parts_.guard && parts_.guard->skips_nonfinite())) {
    report_divergence(position, local_loss, norms, result);
  }
  if (!parts_.guard) return true;
  result.skip_reason = finite ? parts_.guard->outlier(result.loss, result.grad_norm)
                              : util::concat("its loss ", result.loss, " or gradient norm ", result.grad_norm,
                                             " is not finite");
  if (result.skip_reason.empty()) {
    parts_.guard->accept(result.loss, result.grad_norm);
    return true;
  }
  if (!parts_.guard->skip()) report_divergence(position, local_loss, norms, result);
  return false;
}

std::vector<TrainStep::MicroBatch> TrainStep::batches_with_shares(const StepPosition& position,
                                                                  int64_t count) {
  std::vector<MicroBatch> batches;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  double &counted = sums.data_ptr<double>()[0], &tokens = sums.data_ptr<double>()[1];
  for (int64_t i = 0; i < count; ++i) {
    batches.push_back({parts_.batches.batch(position.first_global_sample, i)});
    const data::Batch& batch = batches.back().batch;
    counted += static_cast<double>(batch.counted);
    tokens +=
        static_cast<double>(std::accumulate(batch.row_tokens.begin(), batch.row_tokens.end(), int64_t{0}));
  }
  comm::Communicator& communicator = parts_.engine.communicator();
  communicator.all_reduce(sums, comm::ReduceOp::kSum, {.unit = "counted targets"})->wait();
  const comm::MeshShape& mesh = parts_.engine.mesh();
  counted_ = static_cast<int64_t>(counted) / mesh.model;  // whose ranks have the same tokens
  tokens_ = static_cast<int64_t>(tokens) / (mesh.model * mesh.context);
  // Gradients are averaged over ranks. A batch in which no target counts has the loss 0.
  for (MicroBatch& each : batches) {
    each.divisor = std::max(counted, 1.0) /
                   static_cast<double>(std::max<int64_t>(each.batch.counted, 1) * communicator.world_size());
  }
  return batches;
}

at::Tensor TrainStep::run_micro_batch(const MicroBatch& micro_batch) {
  const data::Batch& batch = micro_batch.batch;
  nn::LossOptions how = options_.loss;
  how.documents = batch.document_starts;
  how.is_token = batch.is_token;
  if (options_.dropout_key) how.dropout = {.key = *options_.dropout_key, .first_row = batch.first_row};
  const double loss_scale = parts_.scaler ? parts_.scaler->scale() : 1;
  if (parts_.scaler) how.terms.expected_gradient = loss_scale / micro_batch.divisor;
  at::Tensor loss;
  {
    const nn::StageContext context = nn::loss_context(batch.targets, how);
    loss = nn::loss_of_output(parts_.model.forward(batch.inputs, context), batch.targets, how, context);
  }
  if (micro_batch.divisor != 1) loss = loss / micro_batch.divisor;
  (parts_.scaler ? loss * loss_scale : loss).backward();
  return loss.detach().to(at::kDouble);
}

void TrainStep::share_requests(StepResult& result) {
  if (!parts_.stop_requested) return;
  at::Tensor requested = at::full({parts_.leave_requested ? 2 : 1}, 0, at::kLong);
  auto* values = requested.data_ptr<int64_t>();
  values[0] = parts_.stop_requested();
  if (parts_.leave_requested) values[1] = parts_.leave_requested();
  parts_.engine.communicator()
      .all_reduce(requested, comm::ReduceOp::kMax, {.unit = "request to stop"})
      ->wait();
  result.stop = values[0] != 0;
  result.leave = parts_.leave_requested && values[1] != 0;
}

/// The mean loss over ranks and, without by_sample, whether a stop is requested on any, in one collective.
void TrainStep::share_loss(double local_loss, StepResult& result) {
  comm::Communicator& communicator = parts_.engine.communicator();
  if (options_.by_sample) {
    result.loss = loss_of_samples();  // requests are shared last
    return;
  }
  at::Tensor sums = at::empty({2}, at::kDouble);
  double* values = sums.data_ptr<double>();
  values[0] = local_loss;
  values[1] = parts_.stop_requested && parts_.stop_requested() ? 1 : 0;
  communicator.all_reduce(sums, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
  result.loss = values[0] / communicator.world_size();
  result.stop = values[1] > 0;
}

/// Each loss is one rank's, and 0 on the others.
std::unique_ptr<comm::Work> TrainStep::share_losses(const at::Tensor& losses) {
  return parts_.engine.communicator().all_reduce(losses, comm::ReduceOp::kSum, {.unit = "losses of samples"});
}

/// They are added in the order of their positions.
double TrainStep::loss_of_samples() {
  if (shared_losses_.empty()) share_losses(sample_losses_)->wait();
  for (const SharedLosses& each : shared_losses_) each.work->wait();
  const auto* first = sample_losses_.const_data_ptr<double>();
  return std::accumulate(first, first + sample_losses_.numel(), 0.0) / targets_of_step_;
}

std::string TrainStep::described_samples(const StepPosition& position, double local_loss) {
  comm::Communicator& communicator = parts_.engine.communicator();
  at::Tensor flags = at::zeros({communicator.world_size()}, at::kDouble);
  flags.data_ptr<double>()[communicator.rank()] = std::isfinite(local_loss) ? 0 : 1;
  communicator.all_reduce(flags, comm::ReduceOp::kSum, {.unit = "finite losses"})->wait();
  std::string ranks;
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    if (flags.data_ptr<double>()[rank] != 0) ranks += util::concat(ranks.empty() ? "" : ", ", rank);
  }
  std::string text;
  if (position.samples > 0) {
    text = util::concat(", samples ", position.first_global_sample, " to ",
                        position.first_global_sample + position.samples - 1, " of the run");
  }
  return ranks.empty() ? text : util::concat(text, ", loss not finite on rank ", ranks);
}

void TrainStep::report_divergence(const StepPosition& position, double local_loss,
                                  const shard::KnownNorms& norms, const StepResult& result,
                                  bool gradients_are_left) {
  const std::string samples = described_samples(position, local_loss);
  const std::string unit =
      gradients_are_left ? shard::first_unit_that_is_not_finite(parts_.engine, norms) : std::string();
  std::string where, how;
  if (!unit.empty()) {
    where = util::concat(", not finite first in the backward of unit ", unit);
  } else if (!result.skip_reason.empty()) {
    where = util::concat(", the largest gradient in unit ", shard::unit_with_largest_gradient(parts_.engine));
  }
  if (!result.skip_reason.empty()) {
    how = util::concat("; ", result.skip_reason, ", and this is skipped step ",
                       parts_.guard->skipped_in_a_row(), " in a row, but training.max_skipped_steps allows ",
                       parts_.guard->max_skipped_steps());
  }
  throw comm::AgreedError(
      util::ErrorKind::kDiverged,
      util::concat(
          "training diverged at step ", position.step, samples, ": loss ", result.loss, ", gradient norm ",
          result.grad_norm, where, how, "; the weights were ",
          updates_as_gradients_arrive_ ? "updated as the gradients arrived, and are unusable" : "not updated",
          "; resume from the last checkpoint with a lower optimizer.lr, a longer warm-up or a "
          "smaller training.max_grad_norm"));
}

}  // namespace fsdp::train
