#include "run/train/step_batches.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "shard/engine/engine.h"

namespace fsdp::train {

StepBatches::StepBatches(const data::BatchSource& source, const shard::Engine& engine, bool counts_vary,
                         const StepPosition& position)
    : source_(source), counts_vary_(counts_vary), position_(position) {
  if (counts_vary) read_all(engine);
}

MicroBatch StepBatches::take(int64_t i, int64_t skipped_samples) {
  if (counts_vary_) return std::move(read_[static_cast<size_t>(i)]);
  return {source_.batch(position_.first_global_sample + skipped_samples, i), static_cast<double>(size())};
}

void StepBatches::read_all(const shard::Engine& engine) {
  at::Tensor sums = at::zeros({3}, at::kDouble);
  double &counted = sums.data_ptr<double>()[0], &tokens = sums.data_ptr<double>()[1],
         &preferred = sums.data_ptr<double>()[2];
  bool is_of_samples = false;
  for (int64_t i = 0; i < size(); ++i) {
    read_.push_back({source_.batch(position_.first_global_sample, i)});
    const data::Batch& batch = read_.back().batch;
    counted += static_cast<double>(batch.counted);
    tokens +=
        static_cast<double>(std::accumulate(batch.row_tokens.begin(), batch.row_tokens.end(), int64_t{0}));
    preferred += static_cast<double>(batch.preferred_targets);
    is_of_samples = batch.scored != nullptr;
  }
  comm::Communicator& communicator = engine.communicator();
  communicator.all_reduce(sums, comm::ReduceOp::kSum, {.unit = "counted targets"})->wait();
  const comm::MeshShape& mesh = engine.mesh();
  // The ranks of the mesh's axis model have the same tokens, and those of its axis context the same samples.
  counted_ = static_cast<int64_t>(counted) / (is_of_samples ? mesh.model * mesh.context : mesh.model);
  tokens_ = static_cast<int64_t>(tokens) / (mesh.model * mesh.context);
  // Gradients are averaged over ranks. A batch in which no target counts has the loss 0.
  for (MicroBatch& each : read_) {
    each.divisor = std::max(counted, 1.0) /
                   static_cast<double>(std::max<int64_t>(each.batch.counted, 1) * communicator.world_size());
    each.targets_divisor = std::max(preferred, 1.0) / static_cast<double>(communicator.world_size());
  }
}

}  // namespace fsdp::train
