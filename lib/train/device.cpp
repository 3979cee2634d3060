#include "train/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "util/error.h"

namespace fsdp::train {

c10::Device training_device(const std::string& name, int local_rank) {
  if (name == "cpu") return c10::kCPU;
  const bool built_for_it = c10::impl::hasDeviceGuardImpl(c10::kCUDA);
  const int gpus = built_for_it ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
  if (gpus == 0) {
    if (name == "auto") return c10::kCPU;
    util::fail(util::ErrorKind::kUsage, "training.device: expected a GPU for \"cuda\"; found ",
               built_for_it ? "none that the NVIDIA driver shows" : "a program that was built without CUDA",
               "; ",
               built_for_it ? "see fsdp-train doctor, or set it to cpu"
                            : "build with scripts/build --cuda, or set it to cpu");
  }
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

}  // namespace fsdp::train
