#include "train/peak_rate.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

TEST(MeasuredMatmulRate, IsThatOfAProcessorInEveryTypeWithOneThreadOrTwo) {
  const int threads = at::get_num_threads();
  for (const int used : {1, 2}) {
    at::set_num_threads(used);
    for (const char* dtype : {"float32", "bfloat16"}) {
      const double rate = measured_matmul_rate(dtype, kernels::matmul_by_name("auto"));
      EXPECT_GT(rate, 1e8) << dtype << ", " << used;
      EXPECT_LT(rate, 1e15) << dtype << ", " << used;
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace fsdp::train
