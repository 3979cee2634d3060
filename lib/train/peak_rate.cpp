#include "train/peak_rate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>

#include "util/clock.h"
#include "util/dtype.h"

namespace fsdp::train {

double measured_matmul_rate(const std::string& dtype, kernels::Matmul matmul) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSize = 1024;
  constexpr double kSeconds = 0.08;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({kSize, kSize}, util::dtype_from_name(dtype));
  const at::Tensor weight = at::ones({kSize, kSize}, x.options());
  kernels::linear(x, weight, matmul);  // the first makes the library's kernels
  double best = 0, spent = 0;
  while (spent < kSeconds) {
    const auto begin = Clock::now();
    kernels::linear(x, weight, matmul);
    const double seconds = util::seconds_since(begin);
    best = std::max(best, kFlops / seconds);
    spent += seconds;
  }
  return best;
}

}  // namespace fsdp::train
