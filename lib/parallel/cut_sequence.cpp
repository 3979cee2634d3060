#include "parallel/cut_sequence.h"

#include <ATen/ops/cat.h>

#include "util/error.h"

namespace fsdp::parallel {

at::Tensor CutSequence::part_of(const at::Tensor& whole, int64_t dimension) const {
  const int64_t tokens = whole.size(dimension), length = tokens / (2 * degree);
  FSDP_CHECK(tokens % (2 * degree) == 0, tokens, " tokens in ", 2 * degree, " chunks");
  const auto [first, second] = chunks();
  return at::cat(
      {whole.narrow(dimension, first * length, length), whole.narrow(dimension, second * length, length)},
      dimension);
}

}  // namespace fsdp::parallel
