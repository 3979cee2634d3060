#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/kernels/fused.h"

namespace fsdp::kernels {
namespace {

TEST(Dropout, DropsTheShareAskedForAndScalesTheRest) {
  const at::Tensor x = at::ones({64, 1001});
  for (double p : {0.1, 0.5, 0.9}) {
    const at::Tensor y = dropout(x, p, 7, 0);
    const at::Tensor kept = y != 0;
    EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 1 - p, 0.01);
    EXPECT_TRUE(at::allclose(y.masked_select(kept), at::full({1}, 1 / (1 - p))));
  }
}

TEST(Dropout, ChoosesByKeyRowAndPlaceAlone) {
  const at::Tensor x = at::randn({6, 5, 40'003});
  const at::Tensor whole = dropout(x, 0.3, 11, 100);
  for (int64_t row = 0; row < 6; ++row) {
    EXPECT_TRUE(at::equal(dropout(x.narrow(0, row, 1), 0.3, 11, 100 + row), whole.narrow(0, row, 1)));
  }
  EXPECT_FALSE(at::equal(dropout(x, 0.3, 12, 100), whole));
  EXPECT_FALSE(at::equal(dropout(x, 0.3, 11, 101), whole));
  const int before = at::get_num_threads();
  for (int threads : {1, 3}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(dropout(x, 0.3, 11, 100), whole)) << threads;
  }
  at::set_num_threads(before);
}

TEST(Dropout, OfAPartOfTheRowsIsThatPartOfTheirDropout) {
  const at::Tensor x = at::randn({3, 50'001}), whole = dropout(x, 0.3, 11, 100);
  for (int64_t first : {0, 1, 2, 16'385, 50'000}) {
    for (int64_t count : {1, 2, 7, 33'000}) {
      if (first + count > 50'001) continue;
      EXPECT_TRUE(at::equal(dropout(x.narrow(1, first, count), 0.3, 11, 100, RowPieces{.begins = {first}}),
                            whole.narrow(1, first, count)))
          << first << " " << count;
    }
  }
}

TEST(Dropout, OfRowsAndPlacesIsIndependent) {
  const at::Tensor dropped = (dropout(at::ones({400, 400}), 0.5, 3, 0) == 0).to(at::kDouble) - 0.5;
  // Neighbours in both directions agree as often as not.
  EXPECT_NEAR((dropped.narrow(0, 0, 399) * dropped.narrow(0, 1, 399)).mean().item<double>(), 0, 0.004);
  EXPECT_NEAR((dropped.narrow(1, 0, 399) * dropped.narrow(1, 1, 399)).mean().item<double>(), 0, 0.004);
}

TEST(Dropout, LetsGradientsThroughWhereValuesWent) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    at::Tensor x = at::ones({9, 17}, at::TensorOptions().dtype(type)).requires_grad_(true);
    const at::Tensor y = dropout(x, 0.25, 5, 2);
    y.sum().backward();
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(at::equal(x.grad(), y.detach()));
  }
}

TEST(Dropout, TakesAnyStridesAndNoRows) {
  const at::Tensor x = at::randn({8, 6});
  EXPECT_TRUE(at::equal(dropout(x.t(), 0.4, 1, 0), dropout(x.t().contiguous(), 0.4, 1, 0)));
  EXPECT_EQ(dropout(at::empty({0, 4}), 0.4, 1, 0).numel(), 0);
}

}  // namespace
}  // namespace fsdp::kernels
