#include "kernels/cuda/adam.cuh"
#include "kernels/cuda/stream_launch.cuh"

namespace fsdp::kernels::cuda {

void adam(Element gradient, const AdamElements& elements) {
  gradient == Element::kFloat ? adam<float>(StreamLaunch(), elements)
                              : adam<c10::BFloat16>(StreamLaunch(), elements);
}

}  // namespace fsdp::kernels::cuda
