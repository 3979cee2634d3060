#include "model/kernels/float8.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <tuple>

#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor in_double(const Float8Matrix& matrix) {
  return matrix.values.to(at::kDouble) * matrix.inverse_scale.to(at::kDouble);
}

/// The formula of the rounding, in double precision except for the multiplication in fp32.
at::Tensor rounded(const at::Tensor& x, at::ScalarType type) {
  const double most = type == at::kFloat8_e4m3fn ? 448 : 57344;
  const double largest = std::max(x.to(at::kDouble).abs().max().item<double>(), 1e-12);
  const auto scale = static_cast<float>(most / largest);
  return (x.to(at::kFloat) * scale).clamp(-most, most).to(type).to(at::kDouble) / double{scale};
}

double float8_error_of(const at::Tensor& ours, const at::Tensor& expected) {
  return ((ours.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

at::Tensor random_bf16(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); }

/// The relative error of rounding a result to bf16.
constexpr double kRounding = 1.0 / 256;

TEST(Float8, RoundsToNumbersOfTheTypeWhoseLargestStandsForTheLargestMagnitude) {
  at::manual_seed(1);
  for (auto [type, most, bits] : {std::tuple{at::kFloat8_e4m3fn, 448.0, 3}, {at::kFloat8_e5m2, 57344.0, 2}}) {
    for (double size : {1e-9, 1.0, 3e8}) {
      const at::Tensor x = (at::randn({32, 48}) * size).to(at::kBFloat16);
      const Float8Matrix x8 = to_float8(x, largest_magnitude(x), type, {.values = true, .transposed = true});
      EXPECT_EQ(x8.values.scalar_type(), type);
      EXPECT_EQ(x8.values.to(at::kFloat).abs().max().item<double>(), most);
      EXPECT_TRUE(x8.transposed.is_contiguous());
      EXPECT_TRUE(at::equal(x8.transposed.to(at::kFloat).t(), x8.values.to(at::kFloat)));
      EXPECT_LT(float8_error_of(in_double(x8), rounded(x, type)), 1e-6);
      // Half of the distance to the next number, relative to the number, for all but the smallest.
      const at::Tensor X = x.to(at::kDouble), large = X.abs() > X.abs().max() / 4096;
      EXPECT_LE(((in_double(x8) - X) / X).masked_select(large).abs().max().item<double>(),
                1.0 / (2 << bits) + 1e-6);
    }
  }
}

TEST(Float8, KeepsZerosAndWhatIsNotFinite) {
  for (at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    auto of = [&](const at::Tensor& x) { return to_float8(x, largest_magnitude(x), type, {}); };
    const Float8Matrix zeros = of(at::zeros({16, 16}, at::kBFloat16));
    EXPECT_TRUE(in_double(zeros).eq(0).all().item<bool>());
    EXPECT_TRUE(zeros.inverse_scale.isfinite().item<bool>());
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
      at::Tensor x = at::ones({16, 16}, at::kBFloat16);
      x[3][5] = bad;
      EXPECT_FALSE(in_double(of(x)).isfinite().all().item<bool>()) << bad;
    }
  }
}

TEST(Float8, ProductsAndTheirGradientsAreThoseOfTheRoundedFactors) {
  at::manual_seed(2);
  for (Matmul matmul : {Matmul::kMkl, Matmul::kOneDnn}) {
    const at::Tensor x = random_bf16({2, 40, 64}).requires_grad_();
    const std::vector<at::Tensor> weights{random_bf16({32, 64}).requires_grad_(),
                                          random_bf16({48, 64}).requires_grad_()};
    const std::vector<at::Tensor> dys{random_bf16({2, 40, 32}), random_bf16({2, 40, 48}) * 1e-3};
    const auto ys = float8_linears(x, weights, matmul);
    const auto gradients = torch::autograd::grad(ys, {x, weights[0], weights[1]}, dys);
    const at::Tensor X = rounded(x.detach().view({80, 64}), at::kFloat8_e4m3fn);
    at::Tensor dx = at::zeros({80, 64}, at::kDouble);
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor W = rounded(weights[i].detach(), at::kFloat8_e4m3fn),
                       D = rounded(dys[i].flatten(0, 1), at::kFloat8_e5m2);
      EXPECT_EQ(ys[i].sizes(), dys[i].sizes());
      EXPECT_EQ(ys[i].scalar_type(), at::kBFloat16);
      EXPECT_LT(float8_error_of(ys[i].flatten(0, 1), at::mm(X, W.t())), kRounding);
      EXPECT_LT(float8_error_of(gradients[i + 1], at::mm(D.t(), X)), kRounding);
      dx += at::mm(D, W);
    }
    EXPECT_LT(float8_error_of(gradients[0].flatten(0, 1), dx), 3 * kRounding);
  }
}

TEST(Float8, ProductsAreNearThoseOfTheFactorsThemselves) {
  at::manual_seed(3);
  const at::Tensor x = random_bf16({128, 256}), weight = random_bf16({64, 256});
  const at::Tensor y = float8_linears(x, {weight}, Matmul::kMkl)[0];
  const at::Tensor expected = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
  const double error = ((y.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  EXPECT_LT(error, 0.05);
  EXPECT_GT(error, 0.01) << "not rounded to 8 bits?";
}

TEST(Float8, TransposedLinearHasABias) {
  at::manual_seed(4);
  for (bool biased : {true, false}) {
    const at::Tensor x = random_bf16({32, 64}).requires_grad_(),
                     weight = random_bf16({64, 48}).requires_grad_(),
                     bias = random_bf16({48}).requires_grad_(), dy = random_bf16({32, 48});
    const at::Tensor y = float8_transposed_linear(
        x, weight, biased ? std::optional<at::Tensor>(bias) : std::nullopt, Matmul::kMkl);
    std::vector<at::Tensor> inputs{x, weight};
    if (biased) inputs.push_back(bias);
    const auto gradients = torch::autograd::grad({y}, inputs, {dy});
    const at::Tensor X = rounded(x.detach(), at::kFloat8_e4m3fn),
                     W = rounded(weight.detach(), at::kFloat8_e4m3fn), D = rounded(dy, at::kFloat8_e5m2);
    const at::Tensor sum = biased ? at::mm(X, W) + bias.detach() : at::mm(X, W);
    EXPECT_LT(float8_error_of(y, sum), kRounding);
    EXPECT_LT(float8_error_of(gradients[0], at::mm(D, W.t())), kRounding);
    EXPECT_LT(float8_error_of(gradients[1], at::mm(X.t(), D)), kRounding);
    if (!biased) continue;
    EXPECT_LT(float8_error_of(gradients[2], dy.to(at::kDouble).sum(0)), kRounding) << "not of dy itself";
  }
}

TEST(Float8, AddsGradientsOfWeightsToTheSink) {
  at::manual_seed(5);
  const at::Tensor x = random_bf16({48, 32}), dy = random_bf16({48, 64});
  const at::Tensor X = rounded(x, at::kFloat8_e4m3fn), D = rounded(dy, at::kFloat8_e5m2);
  for (at::ScalarType sink_type : {at::kFloat, at::kBFloat16}) {
    for (bool transposed : {false, true}) {
      const at::Tensor weight =
          random_bf16(transposed ? at::IntArrayRef{32, 64} : at::IntArrayRef{64, 32}).requires_grad_();
      TestSink& sink = TestSink::attach(weight, sink_type);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const at::Tensor y = transposed ? float8_transposed_linear(x, weight, std::nullopt, Matmul::kMkl)
                                        : float8_linears(x, {weight}, Matmul::kMkl)[0];
        y.backward(dy);
      }
      EXPECT_EQ(sink.by_autograd, 0);
      EXPECT_LT(float8_error_of(sink.memory, 2 * (transposed ? at::mm(X.t(), D) : at::mm(D.t(), X))),
                sink_type == at::kFloat ? 1e-6 : 2 * kRounding);
    }
  }
}

TEST(Float8, ComputesNoGradientThatNobodyAsksFor) {
  const at::Tensor x = random_bf16({16, 16}).requires_grad_(), weight = random_bf16({16, 16});
  float8_linears(x, {weight, weight.detach().requires_grad_()}, Matmul::kMkl)[0].sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(Float8, IsForMultiplesOfSixteenInBfloat16) {
  const at::Tensor x = random_bf16({2, 8, 32}), weight = random_bf16({48, 32});
  EXPECT_TRUE(can_multiply_float8(x, weight));
  EXPECT_FALSE(can_multiply_float8(x.narrow(1, 0, 7), weight)) << "rows";
  EXPECT_FALSE(can_multiply_float8(x.narrow(1, 0, 0), weight)) << "no rows";
  EXPECT_FALSE(can_multiply_float8(x, random_bf16({40, 32})));
  EXPECT_FALSE(can_multiply_float8(random_bf16({16, 24}), random_bf16({48, 24})));
  EXPECT_FALSE(can_multiply_float8(x.to(at::kFloat), weight.to(at::kFloat)));
}

TEST(Float8, NeedsAGpuOfTheLastGenerations) {
  for (const char* capability : {"8.9", "9.0", "10.0", "10.3", "12.0"}) {
    EXPECT_TRUE(has_float8_units(capability)) << capability;
  }
  for (const char* capability : {"7.5", "8.0", "8.6", "8.7", "", "8"}) {
    EXPECT_FALSE(has_float8_units(capability)) << capability;
  }
  EXPECT_NO_THROW(require_float8("training.float8", at::kCPU));
}

}  // namespace
}  // namespace fsdp::kernels
