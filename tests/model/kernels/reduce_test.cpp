#include "model/kernels/reduce.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fsdp::kernels {
namespace {

double sum_of_squares(const at::Tensor& x) { return sums_of_squares({x}).front(); }

TEST(SumOfSquares, IsThatOfDoublePrecision) {
  at::manual_seed(3);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int64_t n : {0, 1, 1000, 300'001}) {
      const at::Tensor x = at::randn({n}).to(type);
      const double expected = x.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(sum_of_squares(x), expected, 1e-12 * expected) << n;
    }
  }
}

TEST(SumOfSquares, KeepsInfinityAndNan) {
  at::Tensor x = at::ones({100'000});
  x[70'000] = INFINITY;
  EXPECT_TRUE(std::isinf(sum_of_squares(x)));
  x[3] = NAN;
  EXPECT_TRUE(std::isnan(sum_of_squares(x)));
}

TEST(SumOfSquares, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor x = at::randn({3'000'000});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = sum_of_squares(x);
  at::set_num_threads(3);
  EXPECT_EQ(sum_of_squares(x), one);
  at::set_num_threads(before);
}

TEST(SumOfSquares, IsTheSumOverRunsThatWereDivided) {
  // A power of two may be multiplied by its inverse, and quotients may be subnormal.
  for (const double divisor : {3.0, 8.0, 0x1p-90, 0x1p120}) {
    for (const int64_t n : {5L, 512L, 3'000L, 100'001L}) {
      at::Tensor x = at::randn({n});
      x.slice(0, 0, n, 7).mul_(0x1p-126);
      const at::Tensor expected = x / at::full_like(x, divisor);
      double squares = 0;
      for (int64_t begin = 0; begin < n; begin += kSquareRun) {
        squares += divide_run(x.data_ptr<float>() + begin, std::min(kSquareRun, n - begin), divisor);
      }
      EXPECT_TRUE(at::equal(x, expected)) << n << " by " << divisor;
      EXPECT_EQ(squares, sum_of_squares(expected)) << n << " by " << divisor;
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels
