#pragma once

// What a rank computes on.

#include <c10/core/Device.h>

#include <string>

#include "config/config.h"
#include "kernels/matmul.h"

namespace fsdp::train {

/// Of training.device: "cpu", "cuda" (of the host's GPUs the one whose number is the rank's among those of
/// its host; more ranks than GPUs share them) or "auto", which is "cuda" where there is a GPU and this
/// program was built to use it. The device becomes the calling thread's current one. Throws Error(kUsage) for
/// "cuda" where that cannot be had.
c10::Device training_device(const std::string& name, int local_rank);

/// Of training.float32_matmul_precision, as torch.set_float32_matmul_precision() has it: whether ("high") or
/// not ("highest") GPUs may round the factors of float32 products to TF32, and a CPU's matrix unit take them
/// as the sum of two numbers in bf16, which are 16 bits. For the whole process; other products on the CPU
/// stay as they are.
void set_float32_matmul_precision(const std::string& precision);
/// Whether GPUs may.
bool float32_products_use_tf32();
/// Whether products on the CPU by `matmul` are such sums.
bool float32_products_are_shorter(kernels::Matmul matmul);

/// Of these, what every run has before it computes: its device, and float32 products on GPUs as it wants
/// them. Where there are no such products, rank 0 (`warns`) says that it wants something that does nothing.
c10::Device prepare_device(const config::TrainingOptions& training, int local_rank, bool warns);

}  // namespace fsdp::train
