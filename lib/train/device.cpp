#include "train/device.h"

#include "util/cuda.h"

namespace fsdp::train {

c10::Device training_device(const std::string& name, int local_rank) {
  if (name == "cpu" || (name == "auto" && util::cuda_status().devices == 0)) return c10::kCPU;
  util::require_cuda("training.device");
  const int index = local_rank % util::cuda_status().devices;
  util::set_cuda_device(index);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace fsdp::train
