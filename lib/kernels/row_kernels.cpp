#include "kernels/row_kernels.h"

#include "kernels/cuda/kernels.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

const RowKernels& kernels_on(const c10::Device& device, Element element) {
  if (device.is_cpu()) return cpu_row_kernels(element);
  const RowKernels* kernels = device.is_cuda() ? cuda::row_kernels(element) : nullptr;
  FSDP_CHECK(kernels != nullptr, "no kernels on ", device.str());
  return *kernels;
}

}  // namespace

KernelsFor::KernelsFor(Element element, const c10::Device& device)
    : kernels_(kernels_on(device, element)), guard_(device) {}

KernelsFor::KernelsFor(const at::Tensor& x) : KernelsFor(element_of(x), x.device()) {}

}  // namespace fsdp::kernels
