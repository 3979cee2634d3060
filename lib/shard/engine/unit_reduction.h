#pragma once

#include <optional>

#include "comm/api/memory_operations.h"
#include "model/kernels/reduce.h"
#include "shard/engine/unit.h"

namespace fsdp::shard {

/// Shared with the communication streams, which release the input when it has been sent.
struct Unit::Reduction {
  at::Tensor input, output;
  at::Tensor of_slice;            ///< the input of a second reduction
  at::Tensor partial_sums;        ///< of the micro-batches before, which are added to the output
  at::Tensor on_host;             ///< the output, where gradients are kept there
  double divisor = 1;             ///< of the output
  std::optional<double> squares;  ///< of the divided output, where they were summed with the division

  /// Whether the sums are divided and squared run by run.
  bool finishes_runs() const { return output.is_cpu() && output.scalar_type() == at::kFloat; }
  void finish_run(float* sums, int64_t n) {
    static_assert(comm::kFinishedRun == kernels::kSquareRun);
    squares = squares.value_or(0) + kernels::divide_run(sums, n, divisor);
  }
  /// Divides the output, unless that was done with its reduction.
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
