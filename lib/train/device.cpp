#include "train/device.h"

#include <ATen/Context.h>

#include "util/cuda.h"
#include "util/error.h"

namespace fsdp::train {

c10::Device training_device(const std::string& name, int local_rank) {
  if (name == "cpu" || (name == "auto" && util::cuda_status().devices == 0)) return c10::kCPU;
  util::require_cuda("training.device");
  const int index = local_rank % util::cuda_status().devices;
  util::set_cuda_device(index);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

void set_float32_matmul_precision(const std::string& precision) {
  FSDP_CHECK(precision == "highest" || precision == "high", precision);
  // Not setFloat32MatmulPrecision(): that would have oneDNN round on some CPUs.
  at::globalContext().setAllowTF32CuBLAS(precision == "high");
}

bool float32_products_use_tf32() { return at::globalContext().allowTF32CuBLAS(); }

}  // namespace fsdp::train
