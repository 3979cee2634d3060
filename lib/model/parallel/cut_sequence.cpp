#include "model/parallel/cut_sequence.h"

#include <ATen/ops/cat.h>

#include "base/util/error.h"

namespace fsdp::parallel {

at::Tensor CutSequence::part_of(const at::Tensor& whole, int64_t dimension) const {
  const int64_t tokens = whole.size(dimension), length = tokens / (2 * degree);
  FSDP_CHECK(tokens % (2 * degree) == 0, tokens, " tokens in ", 2 * degree, " chunks");
  const auto [first, second] = chunks();
  return at::cat(
      {whole.narrow(dimension, first * length, length), whole.narrow(dimension, second * length, length)},
      dimension);
}

kernels::RowPieces CutSequence::places(int64_t first, int64_t count, int64_t tokens) const {
  const auto [early, late] = chunks();
  const int64_t length = tokens / 2;
  if (first >= length) return {.begins = {late * length + first - length}};
  const int64_t begin = early * length + first;
  if (first + count <= length) return {.begins = {begin}};
  // The range is all tokens, or the middle one of an odd number of parts.
  FSDP_CHECK(2 * (length - first) == count, count, " tokens from ", first, " on of chunks of ", length);
  return {.count = 2, .begins = {begin, late * length}};
}

}  // namespace fsdp::parallel
