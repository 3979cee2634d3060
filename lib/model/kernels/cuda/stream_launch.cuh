#pragma once

// Launches of kernels (thread_model.cuh) on a GPU.

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "model/kernels/cuda/thread_model.cuh"

namespace fsdp::kernels::cuda {

/// Blocks per multiprocessor for which registers are reserved: Kernel::kMinBlocks. With
/// Kernel::kRegistersFirst the kernel gets as many registers as it needs. Otherwise the compiler decides, and
/// may move values to memory for one more block.
template <typename Kernel>
constexpr int min_blocks() {
  if constexpr (requires { Kernel::kMinBlocks; }) return Kernel::kMinBlocks;
  if constexpr (requires { Kernel::kRegistersFirst; }) return Kernel::kRegistersFirst ? 1 : 0;
  return 0;
}

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, min_blocks<Kernel>())
    entry(const typename Kernel::Arguments arguments) {
  __shared__ typename Kernel::Shared shared;
  Kernel::run(arguments, shared);
}

/// Launches on the current stream of the current device.
class StreamLaunch {
 public:
  template <typename Kernel>
  void run(const Grid& grid, const typename Kernel::Arguments& arguments) const {
    if (grid.x == 0 || grid.y == 0) return;
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
    entry<Kernel><<<blocks, Kernel::kThreads, 0, stream_>>>(arguments);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

 private:
  cudaStream_t stream_ = c10::cuda::getCurrentCUDAStream();
};

}  // namespace fsdp::kernels::cuda
