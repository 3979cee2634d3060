#pragma once

// What a rank computes on.

#include <c10/core/Device.h>

#include <string>

#include "config/config.h"

namespace fsdp::train {

/// Of training.device: "cpu", "cuda" (of the host's GPUs the one whose number is the rank's among those of
/// its host; more ranks than GPUs share them) or "auto", which is "cuda" where there is a GPU and this
/// program was built to use it. The device becomes the calling thread's current one. Throws Error(kUsage) for
/// "cuda" where that cannot be had.
c10::Device training_device(const std::string& name, int local_rank);

/// Of training.float32_matmul_precision, as torch.set_float32_matmul_precision() has it: whether GPUs may
/// round the factors of float32 products to TF32 ("high") or not ("highest"). For the whole process; products
/// on the CPU stay as they are.
void set_float32_matmul_precision(const std::string& precision);
/// Whether they may.
bool float32_products_use_tf32();

/// Of these, what every run has before it computes: its device, and float32 products on GPUs as it wants
/// them. Where there are no such products, rank 0 (`warns`) says that it wants something that does nothing.
c10::Device prepare_device(const config::TrainingOptions& training, int local_rank, bool warns);

}  // namespace fsdp::train
