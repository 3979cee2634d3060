#pragma once

// How fast this process multiplies matrices when it does nothing else: what its model could reach at best.

#include <c10/core/Device.h>

#include <string>

#include "kernels/matmul.h"

namespace fsdp::train {

/// The best of several products y = x W^T of [512, 512] matrices on the CPU with one thread, [1024, 1024]
/// with several and [8192, 8192] on a device other than the CPU, in `dtype` by the library that the model
/// uses, in FLOP/s. Takes about 0.03 s on the CPU, and stands between the start of a run and its first step.
/// Ranks of one host that measure at once share it as they do in training.
double measured_matmul_rate(const std::string& dtype, kernels::Matmul matmul, at::Device device = at::kCPU);

}  // namespace fsdp::train
