#include "data/loading/prefetch.h"

#include <utility>

#include "base/util/error.h"

namespace fsdp::data {

PrefetchingBatches::PrefetchingBatches(const BatchSource& source, int64_t samples_per_micro_step,
                                       const PrefetchOptions& options)
    : source_(source),
      step_(samples_per_micro_step),
      options_(options),
      feed_({.device = options.device, .has_thread = options.depth > 0}) {
  FSDP_CHECK(options.depth >= 0 && step_ >= 1);
}

Batch PrefetchingBatches::batch(int64_t first_global_sample, int64_t micro_batch) const {
  // A micro-batch depends only on its first position, so one sequence covers steps of any length.
  const int64_t position = first_global_sample + micro_batch * step_;
  if (!ahead_.empty() && ahead_.front().position != position) {
    feed_.clear();
    ahead_.clear();
  }
  if (ahead_.empty()) read_ahead(position);
  while (static_cast<int64_t>(ahead_.size()) <= options_.depth) {
    const int64_t next = ahead_.back().position + step_;
    if (next >= options_.end) break;
    read_ahead(next);
  }
  const Prefetched read = std::move(ahead_.front());
  ahead_.pop_front();
  const util::DeviceFeed::Tensors tensors = feed_.take();
  for (size_t i = 0; i < tensors.size(); ++i) *(*read.places)[i] = tensors[i];
  Batch batch = std::move(*read.batch);
  if (options_.on_arrival) options_.on_arrival(batch);
  return batch;
}

void PrefetchingBatches::read_ahead(int64_t position) const {
  ahead_.push_back({position, std::make_shared<Batch>(), std::make_shared<std::vector<at::Tensor*>>()});
  feed_.add([this, position, batch = ahead_.back().batch, places = ahead_.back().places] {
    *batch = source_.batch(position, 0);
    if (options_.on_reading) options_.on_reading(*batch);
    *places = batch->device_tensors();
    util::DeviceFeed::Tensors tensors;
    for (at::Tensor* tensor : *places) tensors.push_back(std::move(*tensor));
    return tensors;
  });
}

}  // namespace fsdp::data
