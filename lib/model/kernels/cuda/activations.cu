#include "model/kernels/cuda/activations.cuh"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/rotary.cuh"
#include "model/kernels/cuda/stream_launch.cuh"

namespace fsdp::kernels::cuda {

template <typename T>
void put_activations(RowKernels& table) {
  table.rotary = [](const RotaryRows& a) { rotary<T>(StreamLaunch(), a); };
  table.swiglu = [](const SwiGluRows& a) { swiglu<T>(StreamLaunch(), a); };
  table.swiglu_backward = [](const SwiGluGradRows& a) { swiglu_backward<T>(StreamLaunch(), a); };
  table.bias_gelu = [](const BiasGeluRows& a) { bias_gelu<T>(StreamLaunch(), a); };
  table.bias_gelu_backward = [](const BiasGeluGradRows& a, const RowParts& parts) {
    bias_gelu_backward<T>(StreamLaunch(), a, parts);
  };
}

template void put_activations<float>(RowKernels&);
template void put_activations<c10::BFloat16>(RowKernels&);
template void put_activations<c10::Half>(RowKernels&);

}  // namespace fsdp::kernels::cuda
