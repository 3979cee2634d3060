#pragma once

#include "kernels/matmul.h"
#include "nn/options.h"

namespace fsdp::nn {

/// By what the stages of a model compute; never what.
struct Compute {
  bool fused = true;  ///< kernels/fused.h, where it has the types
  kernels::Matmul matmul = kernels::Matmul::kMkl;

  explicit Compute(const ModelOptions& options)
      : fused(options.fused_kernels), matmul(kernels::matmul_by_name(options.matmul)) {}
  Compute() = default;
};

}  // namespace fsdp::nn
