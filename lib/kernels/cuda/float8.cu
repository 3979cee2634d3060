#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/stream_launch.cuh"

namespace fsdp::kernels::cuda {

void round_to_float8(const Float8Rounding& matrix) { round_to_float8(StreamLaunch(), matrix); }

}  // namespace fsdp::kernels::cuda
