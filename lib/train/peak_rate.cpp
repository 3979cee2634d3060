#include "train/peak_rate.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "util/clock.h"
#include "util/dtype.h"

namespace fsdp::train {

double measured_matmul_rate(const std::string& dtype, kernels::Matmul matmul, at::Device device) {
  using Clock = std::chrono::steady_clock;
  // One thread is as fast with the smaller matrices, of which it does six in the time of one of the others:
  // some of them meet no other load. Several threads need more to share.
  const int64_t size = !device.is_cpu() ? 8192 : at::get_num_threads() > 1 ? 1024 : 512;
  const double least_seconds = device.is_cpu() ? 0.02 : 0.08;
  const double flops = 2.0 * std::pow(static_cast<double>(size), 3);
  at::NoGradGuard no_grad;
  // Matrix units are a fifth faster with numbers that are all the same.
  const at::Tensor x = (device.is_cpu() ? at::arange(size * size, at::kFloat).sin_().view({size, size})
                                        : at::ones({size, size}, at::TensorOptions().device(device)))
                           .to(util::dtype_from_name(dtype));
  const at::Tensor weight = x.clone();
  const auto multiply = [&] {
    const at::Tensor y = kernels::linear(x, weight, matmul);
    if (!device.is_cpu()) y.view({-1})[0].item<double>();  // waits for the device
  };
  multiply();  // the first makes the library's kernels
  double best = 0, spent = 0;
  while (spent < least_seconds) {
    const auto begin = Clock::now();
    multiply();
    const double seconds = util::seconds_since(begin);
    best = std::max(best, flops / seconds);
    spent += seconds;
  }
  return best;
}

}  // namespace fsdp::train
