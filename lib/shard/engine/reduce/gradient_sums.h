#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "comm/api/memory_operations.h"
#include "model/kernels/reduce.h"

namespace fsdp::shard {

/// The gradients of one reduction. The queues of the communicators share it with the caller, because they
/// release the tensors when these have been sent.
struct GradientSums {
  at::Tensor input;               ///< the buffer of the whole unit's gradients
  at::Tensor output;              ///< the sums so far
  at::Tensor read_across;         ///< tensor that the second collective reads besides the output
  double divisor = 1;             ///< divisor of the output, which makes it a mean
  std::optional<double> squares;  ///< sum of squares of the mean, if it was computed with the division

  /// Whether the sums are divided and squared run by run.
  bool finishes_runs() const { return output.is_cpu() && output.scalar_type() == at::kFloat; }
  void finish_run(float* sums, int64_t n) {
    static_assert(comm::kFinishedRun == kernels::kSquareRun);
    squares = squares.value_or(0) + kernels::divide_run(sums, n, divisor);
  }
  /// Divides the output, unless its reduction has done so.
  void finish() {
    if (squares) return;
    if (!finishes_runs()) {
      if (divisor != 1) output.div_(divisor);
      return;
    }
    comm::finish_sums(output, [this](float* sums, int64_t n) { finish_run(sums, n); });
  }
};

}  // namespace fsdp::shard
