#include "run/train/rank_paces.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "base/util/clock.h"
#include "base/util/system.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::train {

BatchFlops::BatchFlops(const config::Config& config, double a_token)
    : row_tokens_(config.data.sequence_length), a_token_(a_token) {
  const bool lengths_differ =
      config.data.max_tokens > 0 || config.data.documents == data::DocumentTreatment::kMask;
  if (a_token == 0) a_token_ = 1;
  if (a_token == 0 || !lengths_differ || row_tokens_ < 2) return;
  // Attention's part grows linearly with the length; two lengths give the line.
  const int64_t half = row_tokens_ / 2;
  const double shorter = plan::flops_a_token(config.model, half, {}, config.lora).model;
  a_pair_ = (a_token - shorter) / static_cast<double>(row_tokens_ - half);
  a_token_ = a_token - a_pair_ * static_cast<double>(row_tokens_);
}

double BatchFlops::of(const data::Batch& batch) const {
  const auto tokens = static_cast<double>(batch.inputs.numel());
  auto length = static_cast<double>(batch.inputs.size(-1));
  if (batch.document_starts) {  // of whole rows, of which this rank may have a part
    double squares = 0;
    for (const std::vector<int64_t>& row : *batch.document_starts) {
      for (size_t i = 0; i < row.size(); ++i) {
        const auto each = static_cast<double>((i + 1 < row.size() ? row[i + 1] : row_tokens_) - row[i]);
        squares += each * each;
      }
    }
    length = squares / static_cast<double>(batch.document_starts->size()) / static_cast<double>(row_tokens_);
  }
  return tokens * (a_token_ + a_pair_ * length);
}

std::unique_ptr<RankPaces> RankPaces::make(const config::Config& config,
                                           std::shared_ptr<comm::Communicator> communicator,
                                           TimedBatches& batches, double flops_a_token) {
  const config::TrainingOptions& training = config.training;
  if (training.slow_rank_factor == 0 || communicator->world_size() == 1 || !communicator->waited_seconds()) {
    return nullptr;
  }
  SlowRanks slow({.factor = training.slow_rank_factor, .steps = training.slow_rank_steps},
                 comm::all_gather_text(*communicator, util::host_name(), {.unit = "hosts of the ranks"}));
  batches.count_work(
      [flops = BatchFlops(config, flops_a_token)](const data::Batch& batch) { return flops.of(batch); });
  return std::unique_ptr<RankPaces>(new RankPaces(std::move(communicator), batches, std::move(slow)));
}

RankPaces::RankPaces(std::shared_ptr<comm::Communicator> communicator, const TimedBatches& batches,
                     SlowRanks slow)
    : communicator_(std::move(communicator)), batches_(batches), slow_(std::move(slow)) {}

void RankPaces::begin_step() {
  began_ = Clock::now();
  waited_before_ = *communicator_->waited_seconds();
  work_before_ = batches_.work();
}

void RankPaces::end_step() {
  if (!std::exchange(warm_, true)) return;
  ++steps_;
  own_seconds_ += util::seconds_since(began_) - (*communicator_->waited_seconds() - waited_before_);
  work_ += batches_.work() - work_before_;
}

std::vector<SlowRanks::Message> RankPaces::compare(int64_t step) {
  if (steps_ == 0) return {};
  // A sum, so that the all-gathers of a trace remain those of parameters.
  const at::Tensor all = at::zeros({communicator_->world_size()}, at::kDouble);
  auto* paces = all.data_ptr<double>();
  paces[communicator_->rank()] = own_seconds_ / work_;
  communicator_->all_reduce(all, comm::ReduceOp::kSum, {.unit = "paces of the ranks"})->wait();
  auto messages = slow_.add(step, std::exchange(steps_, 0), {paces, paces + all.numel()});
  own_seconds_ = work_ = 0;
  compared_ = true;
  return messages;
}

}  // namespace fsdp::train
