#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/stream_launch.cuh"
#include "kernels/cuda/table_parts.h"

namespace fsdp::kernels::cuda {

template <typename T>
void put_rms_norm(RowKernels& table) {
  table.rms_norm = [](const RmsNormRows& a) { rms_norm<T>(StreamLaunch(), a); };
  table.rms_norm_backward = [](const RmsNormGradRows& a, const RowParts& parts) {
    rms_norm_backward<T>(StreamLaunch(), a, parts);
  };
}

template void put_rms_norm<float>(RowKernels&);
template void put_rms_norm<c10::BFloat16>(RowKernels&);

}  // namespace fsdp::kernels::cuda
