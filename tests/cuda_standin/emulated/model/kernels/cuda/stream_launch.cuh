#pragma once

// In place of lib/model/kernels/cuda/stream_launch.cuh where g++ compiles the .cu files of that folder for
// the stand-in: each kernel that they launch becomes known to numbers_kernels.cpp, which runs it by the
// emulator.

#include <typeinfo>

#include "support/cuda_emulator.h"

namespace fsdp::kernels::cuda {

struct EmulatedKernel {
  size_t bytes = 0;  ///< of the arguments
  void (*clear_padding)(void* arguments) = nullptr;
  void (*run)(const Grid& grid, const void* arguments) = nullptr;
};

/// `type` is the kernel's. Returns true.
bool add_emulated_kernel(const std::type_info& type, const EmulatedKernel& kernel);

template <typename Kernel>
EmulatedKernel emulated_kernel() {
  using Arguments = typename Kernel::Arguments;
  return {.bytes = sizeof(Arguments),
          .clear_padding = [](void* to) { __builtin_clear_padding(static_cast<Arguments*>(to)); },
          .run =
              [](const Grid& grid, const void* arguments) {
                EmulatedLaunch().run<Kernel>(grid, *static_cast<const Arguments*>(arguments));
              }};
}

template <typename Kernel>
inline const bool is_emulated = add_emulated_kernel(typeid(Kernel), emulated_kernel<Kernel>());

class StreamLaunch {
 public:
  template <typename Kernel>
  void run(const Grid&, const typename Kernel::Arguments&) const {
    static_cast<void>(is_emulated<Kernel>);
  }
};

}  // namespace fsdp::kernels::cuda
