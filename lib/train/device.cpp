#include "train/device.h"

#include <ATen/Context.h>

#include "kernels/tile_product.h"
#include "util/cuda.h"
#include "util/error.h"
#include "util/log.h"

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
  kernels::set_float32_parts(precision == "high" ? 2 : 3);
}

bool float32_products_are_shorter(kernels::Matmul matmul) {
  return matmul == kernels::Matmul::kAmx && kernels::float32_parts() < 3;
}

bool float32_products_use_tf32() { return at::globalContext().allowTF32CuBLAS(); }

c10::Device prepare_device(const config::TrainingOptions& training, int local_rank, bool warns) {
  set_float32_matmul_precision(training.float32_matmul_precision);
  const c10::Device device = training_device(training.device, local_rank);
  const bool is_of_use = training.float32_matmul_precision == "highest" || !device.is_cpu() ||
                         float32_products_are_shorter(kernels::matmul_by_name(training.matmul));
  if (!is_of_use && warns) {
    util::log_warning(
        util::concat("training.float32_matmul_precision: expected \"highest\" on a CPU without a matrix "
                     "unit (training.matmul = \"amx\"), which multiplies in full precision; found \"",
                     training.float32_matmul_precision, "\", which does nothing here; leave it out"));
  }
  return device;
}

}  // namespace fsdp::train
