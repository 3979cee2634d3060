#include "model/kernels/sample_sums.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "model/kernels/block_product.h"
#include "model/kernels/exact_squares.h"
#include "model/kernels/fused.h"
#include "model/kernels/matmul.h"
#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

TEST(SumAlongTree, AddsNeighboursFirst) {
  // In fp32 the sum depends on the order: 1 is lost beside 2^25.
  const std::vector<float> leaves = {33554432.0F, 1, 1, 1, 1, 1, 1, -33554432.0F};
  const at::Tensor sum = at::empty({1}, at::kFloat);
  sum_along_tree(8, sum, [&](int64_t i, const at::Tensor& to) { to.fill_(leaves[static_cast<size_t>(i)]); });
  const auto level = [&](size_t i) { return leaves[i] + leaves[i + 1]; };
  EXPECT_EQ(sum.item<float>(), (level(0) + level(2)) + (level(4) + level(6)));
}

TEST(SumAlongTree, KeepsWhatTwoHalvesAddUpTo) {
  const at::Tensor leaves = at::randn({8, 50}), whole = at::empty({50}), left = at::empty({50}),
                   right = at::empty({50});
  const auto of = [&](int64_t first) {
    return [&leaves, first](int64_t i, const at::Tensor& to) { to.copy_(leaves[first + i]); };
  };
  sum_along_tree(8, whole, of(0));
  sum_along_tree(4, left, of(0));
  sum_along_tree(4, right, of(4));
  EXPECT_TRUE(at::equal(whole, left + right));
}

/// A layer's result, its input's gradient and those of its parameters, for all samples or some of them.
struct Pass {
  at::Tensor y, dx;
  std::vector<at::Tensor> gradients;
};
using Layer = std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;

Pass pass_of(const Layer& layer, const at::Tensor& all, const std::vector<at::Tensor>& parameters,
             const at::Tensor& dy, std::pair<int64_t, int64_t> samples) {
  const auto [first, count] = samples;
  const at::Tensor x = all.narrow(0, first, count).clone();
  if (x.is_floating_point()) x.requires_grad_(true);
  std::vector<at::Tensor> own;
  std::vector<TestSink*> sinks;
  for (const at::Tensor& parameter : parameters) {
    own.push_back(parameter.clone().requires_grad_(true));
    sinks.push_back(&TestSink::attach(own.back()));
  }
  const SampleSums sums(count, 1);
  Pass pass;
  at::Tensor y = layer(x, own);
  pass.y = y.detach().clone();
  y.backward(y.dim() == 0 ? at::ones_like(y) : dy.narrow(0, first, count).clone());
  pass.dx = x.grad();
  for (TestSink* sink : sinks) pass.gradients.push_back(sink->memory);
  return pass;
}

/// That 4 samples give the rows of single ones, and the sums of two halves, whatever the number of threads.
void expect_independent(const Layer& layer, const at::Tensor& x, const std::vector<at::Tensor>& parameters,
                        const at::Tensor& dy) {
  const int before = at::get_num_threads();
  const Pass whole = pass_of(layer, x, parameters, dy, {0, 4});
  at::set_num_threads(1);
  const Pass left = pass_of(layer, x, parameters, dy, {0, 2}),
             right = pass_of(layer, x, parameters, dy, {2, 2});
  at::set_num_threads(before);
  if (whole.y.dim() > 0) {
    EXPECT_TRUE(at::equal(whole.y, at::cat({left.y, right.y})));
  }
  if (whole.dx.defined()) {
    EXPECT_TRUE(at::equal(whole.dx, at::cat({left.dx, right.dx})));
  }
  for (size_t i = 0; i < whole.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(whole.gradients[i], left.gradients[i] + right.gradients[i])) << "parameter " << i;
  }
}

class SampleSumsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!has_small_products(GetParam())) GTEST_SKIP() << "no products in blocks here";
    at::manual_seed(1);
  }
  at::Tensor random(at::IntArrayRef shape) const { return at::randn(shape).to(GetParam()); }
};

TEST_P(SampleSumsTest, LinearLayersSumBySample) {
  expect_independent([](const at::Tensor& x, const auto& p) { return linear(x, p[0], Matmul::kOneDnn); },
                     random({4, 75, 66}), {random({130, 66})}, random({4, 75, 130}));
}

TEST_P(SampleSumsTest, TransposedLayersWithBiasSumBySample) {
  expect_independent(
      [](const at::Tensor& x, const auto& p) { return transposed_linear(x, p[0], p[1], Matmul::kOneDnn); },
      random({4, 600, 40}), {random({40, 90}), random({90})}, random({4, 600, 90}));
}

TEST_P(SampleSumsTest, NormsSumBySample) {
  expect_independent([](const at::Tensor& x, const auto& p) { return layer_norm(x, p[0], p[1], 1e-5); },
                     random({4, 130, 300}), {random({300}), random({300})}, random({4, 130, 300}));
}

TEST_P(SampleSumsTest, ActivationsSumTheirBiasBySample) {
  expect_independent([](const at::Tensor& x, const auto& p) { return bias_gelu(x, p[0]); },
                     random({4, 60, 200}), {random({200})}, random({4, 60, 200}));
}

TEST_P(SampleSumsTest, AddedBiasesSumBySample) {
  expect_independent([](const at::Tensor& x, const auto& p) { return add_bias(x, p[0]); },
                     random({4, 60, 200}), {random({200})}, random({4, 60, 200}));
}

TEST_P(SampleSumsTest, EmbeddingsSumBySample) {
  expect_independent([](const at::Tensor& ids, const auto& p) { return kernels::embedding(p[0], ids); },
                     at::randint(13, {4, 70}, at::kLong), {random({20, 48})}, random({4, 70, 48}));
}

TEST_P(SampleSumsTest, TheLossSumsBySampleWhetherItKeepsLogitsOrNot) {
  for (const int64_t width : {24, 300}) {
    const at::Tensor targets = at::randint(77, {4 * 50}, at::kLong), x = random({4, 50, width});
    int64_t calls = 0;
    expect_independent(
        [&](const at::Tensor& rows, const auto& p) {
          // The whole, then its two halves.
          const int64_t first = calls++ == 2 ? 100 : 0;
          return linear_cross_entropy(rows.flatten(0, 1), p[0], targets.narrow(0, first, rows.size(0) * 50),
                                      Matmul::kOneDnn);
        },
        x, {random({77, width})}, {});
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SampleSumsTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(SampleSums, GivesTheLossOfEachSample) {
  if (!has_small_products(at::kFloat)) GTEST_SKIP() << "no products in blocks here";
  const at::Tensor x = at::randn({12, 8}), weight = at::randn({9, 8}),
                   targets = at::randint(9, {12}, at::kLong);
  SampleSums sums(3, 12);
  const double mean = linear_cross_entropy(x, weight, targets, Matmul::kOneDnn).item<double>();
  ASSERT_EQ(sums.losses.size(), 3);
  EXPECT_NEAR((sums.losses[0] + sums.losses[1] + sums.losses[2]) / 12, mean, 1e-6);
  const double second =
      at::cross_entropy_loss(at::matmul(x, weight.t()).narrow(0, 4, 4), targets.narrow(0, 4, 4))
          .item<double>();
  EXPECT_NEAR(sums.losses[1] / 4, second, 1e-5);
}

TEST(ExactSquares, DoNotDependOnHowNumbersAreSharedOut) {
  // From the smallest to large magnitudes, so that plain sums differ.
  const at::Tensor x = at::randn({30'000}) * at::pow(2.0, at::randint(-140, 60, {30'000}));
  ExactSquares whole, parts;
  whole.add(x);
  for (int64_t begin = 0; begin < x.numel(); begin += 777) {
    ExactSquares part;
    part.add(x.narrow(0, begin, std::min<int64_t>(777, x.numel() - begin)).clone());
    parts.counts().add_(part.counts());
  }
  EXPECT_EQ(whole.sum(), parts.sum());
  const at::Tensor wide = x.to(at::kDouble);
  EXPECT_NEAR(whole.sum() / wide.dot(wide).item<double>(), 1, 1e-14);
}

TEST(ExactSquares, KnowNumbersAtTheEndsOfTheRange) {
  for (const float value :
       {0.0F, 1.0F, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
    ExactSquares squares;
    squares.add(at::full({3}, value, at::kFloat));
    EXPECT_EQ(squares.sum(), 3.0 * value * value) << value;
  }
  ExactSquares squares;
  squares.add(at::tensor({1.0F, std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_EQ(squares.sum(), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace fsdp::kernels
