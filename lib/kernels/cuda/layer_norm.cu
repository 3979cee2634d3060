#include "kernels/cuda/layer_norm.cuh"
#include "kernels/cuda/stream_launch.cuh"
#include "kernels/cuda/table_parts.h"

namespace fsdp::kernels::cuda {

template <typename T>
void put_layer_norm(RowKernels& table) {
  table.layer_norm = [](const LayerNormRows& a) { layer_norm<T>(StreamLaunch(), a); };
  table.layer_norm_backward = [](const LayerNormGradRows& a, const RowParts& parts) {
    layer_norm_backward<T>(StreamLaunch(), a, parts);
  };
}

template void put_layer_norm<float>(RowKernels&);
template void put_layer_norm<c10::BFloat16>(RowKernels&);

}  // namespace fsdp::kernels::cuda
