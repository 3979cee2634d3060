#include "model/kernels/cuda/columns.cuh"
#include "model/kernels/cuda/elements.cuh"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/losses.cuh"
#include "model/kernels/cuda/stream_launch.cuh"

namespace fsdp::kernels::cuda {

template <typename T>
void put_losses(RowKernels& table) {
  table.add_rows = [](const void* x, float* sums, const RowParts& parts) {
    add_rows<T>(StreamLaunch(), x, sums, parts);
  };
  table.totals = [](const PartTotal* all, int64_t count) { totals<T>(StreamLaunch(), all, count); };
  table.count_targets = [](const int64_t* targets, int64_t rows, double* counted) {
    count_targets(StreamLaunch(), targets, rows, counted);
  };
  table.losses = [](const LossRows& a) { losses<T>(StreamLaunch(), a); };
  table.mean_loss = [](const double* values, int64_t rows, const double* counted, float* mean) {
    mean_loss(StreamLaunch(), values, rows, counted, mean);
  };
  table.scale = [](void* x, int64_t n, const float* factor) {
    scale<T>(StreamLaunch(), {.x = x, .n = n, .factor = factor});
  };
  table.sum_of_squares = [](const void* x, int64_t n, double* scratch, double* sum) {
    sum_of_squares<T>(StreamLaunch(), x, n, scratch, sum);
  };
}

template void put_losses<float>(RowKernels&);
template void put_losses<c10::BFloat16>(RowKernels&);
template void put_losses<c10::Half>(RowKernels&);

}  // namespace fsdp::kernels::cuda
