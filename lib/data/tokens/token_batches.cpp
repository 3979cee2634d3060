#include "data/tokens/token_batches.h"

#include <algorithm>

#include "base/util/error.h"
#include "data/tokens/sample_order.h"

namespace fsdp::data {
namespace {

int64_t checked_length(const Samples& samples, int64_t sample, int64_t max_tokens) {
  const int64_t length = samples.length(sample);
  if (length < 1) {
    fail(ErrorKind::kUsage,
         "data.max_tokens: expected samples with known lengths; found an unknown length in ", samples.name(),
         "; leave data.max_tokens out, or implement Samples::length() in the data set's plug-in");
  }
  if (length > max_tokens) {
    fail(ErrorKind::kUsage, "data.max_tokens: expected at least the tokens of each sample; found ",
         max_tokens, ", and a sample of ", length, " in ", samples.name(),
         "; raise it, or lower data.sequence_length, which cuts documents into several samples");
  }
  return length;
}

}  // namespace

TokenBatches::TokenBatches(const Samples& samples, int64_t max_tokens, bool shuffle, uint64_t seed) {
  const int64_t count = samples.num_samples();
  if (count == 0) return;
  const SampleOrder within_length(count, shuffle, seed);
  order_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) order_.push_back(within_length.sample(i));
  std::vector<int32_t> lengths(static_cast<size_t>(count));
  const auto length_of = [&lengths](int64_t sample) { return lengths[static_cast<size_t>(sample)]; };
  for (int64_t i = 0; i < count; ++i) {
    lengths[static_cast<size_t>(i)] = static_cast<int32_t>(checked_length(samples, i, max_tokens));
  }
  std::ranges::stable_sort(order_, {}, length_of);
  int64_t begin = 0;
  for (int64_t i = 1; i < count; ++i) {
    // Rows are sorted, so the next row would be the longest.
    if ((i + 1 - begin) * length_of(order_[static_cast<size_t>(i)]) <= max_tokens) continue;
    ends_.push_back(i);
    begin = i;
  }
  ends_.push_back(count);
}

std::span<const int64_t> TokenBatches::batch(int64_t index) const {
  FSDP_CHECK(index >= 0 && index < num_batches(), "batch ", index, " of ", num_batches());
  const int64_t begin = index == 0 ? 0 : ends_[static_cast<size_t>(index - 1)];
  return std::span(order_).subspan(static_cast<size_t>(begin),
                                   static_cast<size_t>(ends_[static_cast<size_t>(index)] - begin));
}

}  // namespace fsdp::data
