#include "kernels/row_kernels.h"

#include "kernels/cuda/kernels.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

/// Becomes a pointer to any function that returns nothing: one that does nothing.
struct Nothing {
  template <typename... Arguments>
  using Function = void (*)(Arguments...);
  template <typename... Arguments>
  constexpr operator Function<Arguments...>() const {  // NOLINT(google-explicit-constructor)
    return [](Arguments...) {};
  }
};

const RowKernels& kernels_on(const c10::Device& device, Element element) {
  constexpr Nothing kNothing;
  static const RowKernels on_meta{kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
                                  kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
                                  kNothing, kNothing, kNothing, kNothing};
  if (device.is_cpu()) return cpu_row_kernels(element);
  if (device.is_meta()) return on_meta;
  const RowKernels* kernels = device.is_cuda() ? cuda::row_kernels(element) : nullptr;
  FSDP_CHECK(kernels != nullptr, "no kernels on ", device.str());
  return *kernels;
}

}  // namespace

KernelsFor::KernelsFor(Element element, const c10::Device& device)
    : kernels_(kernels_on(device, element)), guard_(device) {}

KernelsFor::KernelsFor(const at::Tensor& x) : KernelsFor(element_of(x), x.device()) {}

}  // namespace fsdp::kernels
