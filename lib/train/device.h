#pragma once

// What a rank computes on.

#include <c10/core/Device.h>

#include <string>

namespace fsdp::train {

/// Of training.device: "cpu", "cuda" (of the host's GPUs the one whose number is the rank's among those of
/// its host; more ranks than GPUs share them) or "auto", which is "cuda" where there is a GPU and this
/// program was built to use it. The device becomes the calling thread's current one. Throws Error(kUsage) for
/// "cuda" where that cannot be had.
c10::Device training_device(const std::string& name, int local_rank);

}  // namespace fsdp::train
