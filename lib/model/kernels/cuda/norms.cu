#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/norms.cuh"
#include "model/kernels/cuda/stream_launch.cuh"

namespace fsdp::kernels::cuda {

template <typename T>
void put_norms(RowKernels& table) {
  table.rms_norm = [](const NormRows& a) { rms_norm<T>(StreamLaunch(), a); };
  table.rms_norm_backward = [](const NormGradRows& a, const RowParts& parts) {
    rms_norm_backward<T>(StreamLaunch(), a, parts);
  };
  table.layer_norm = [](const NormRows& a) { layer_norm<T>(StreamLaunch(), a); };
  table.layer_norm_backward = [](const NormGradRows& a, const RowParts& parts) {
    layer_norm_backward<T>(StreamLaunch(), a, parts);
  };
}

template void put_norms<float>(RowKernels&);
template void put_norms<c10::BFloat16>(RowKernels&);
template void put_norms<c10::Half>(RowKernels&);

}  // namespace fsdp::kernels::cuda
