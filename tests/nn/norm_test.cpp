// Norms in low precision: the formulas of tests/nn/layers_test.cpp in double precision, on the same rounded
// inputs, and what is left is one rounding of the result.

#include "nn/norm.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fsdp::nn {
namespace {

constexpr int64_t kSize = 4096;
constexpr double kEpsilon = 1e-5;

/// Half the distance between neighbouring numbers, relative.
double rounding(at::ScalarType type) {
  return type == at::kBFloat16 ? std::ldexp(1, -8) : std::ldexp(1, -11);
}

at::Tensor sample(std::vector<int64_t> shape, double phase, at::ScalarType type) {
  return (at::arange(c10::multiply_integers(shape), at::kDouble) * 0.7 + phase).sin().view(shape).to(type);
}

/// What a norm gave for x and what it should have given, with the gradients of sum(result * factors).
struct Outcome {
  at::Tensor result, x_gradient, weight_gradient;
};

template <typename Norm>
Outcome outcome_of(at::ScalarType weight_type, const at::Tensor& x, const at::Tensor& factors) {
  Norm norm(kSize, kEpsilon);
  for (const auto& parameter : norm.named_parameters()) {
    at::Tensor value = parameter.value();
    value.set_data(sample({kSize}, parameter.key() == "bias" ? 0.2 : 0.6, at::kFloat).to(weight_type));
  }
  at::Tensor leaf = x.detach().requires_grad_();
  at::Tensor result = norm.forward(leaf);
  (result * factors.to(result.scalar_type())).sum().backward();
  return {result.detach(), leaf.grad(), norm.named_parameters()["weight"].grad()};
}

template <typename Norm>
class LowPrecision : public ::testing::Test {
 public:
  /// Of x, with weights of `weight_type`, in double precision throughout.
  static Outcome expected(at::ScalarType weight_type, const at::Tensor& x, const at::Tensor& factors) {
    at::Tensor leaf = x.detach().to(at::kDouble).requires_grad_();
    at::Tensor weight = sample({kSize}, 0.6, at::kFloat).to(weight_type).to(at::kDouble).requires_grad_();
    at::Tensor bias = sample({kSize}, 0.2, at::kFloat).to(weight_type).to(at::kDouble);
    at::Tensor result;
    if constexpr (std::is_same_v<Norm, RmsNorm>) {
      result = leaf / (leaf.square().mean(-1, true) + kEpsilon).sqrt() * weight;
    } else {
      at::Tensor centred = leaf - leaf.mean(-1, true);
      result = centred / (centred.square().mean(-1, true) + kEpsilon).sqrt() * weight + bias;
    }
    (result * factors.to(at::kDouble)).sum().backward();
    return {result.detach(), leaf.grad(), weight.grad()};
  }
};

void expect_within(double relative, const at::Tensor& found, const at::Tensor& expected) {
  at::Tensor error = (found.to(at::kDouble) - expected).abs() - relative * expected.abs();
  EXPECT_LT(error.max().item<double>(), 2e-5 * expected.abs().max().item<double>());
}

using Norms = ::testing::Types<RmsNorm, LayerNorm>;
TYPED_TEST_SUITE(LowPrecision, Norms);

TYPED_TEST(LowPrecision, SumsInFloat32) {
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    // Far from zero, so that sums in low precision would lose most of their digits.
    at::Tensor x = sample({64, kSize}, 0.5, type) + 2, factors = sample({64, kSize}, 0.9, type);
    Outcome found = outcome_of<TypeParam>(type, x, factors), expected = this->expected(type, x, factors);
    EXPECT_EQ(found.result.scalar_type(), type);
    expect_within(rounding(type), found.result, expected.result);
    expect_within(rounding(type), found.weight_gradient, expected.weight_gradient);
    double error = (found.x_gradient.to(at::kDouble) - expected.x_gradient).norm().template item<double>();
    EXPECT_LT(error, 2 * rounding(type) * expected.x_gradient.norm().template item<double>());
  }
}

TYPED_TEST(LowPrecision, ComputesInTheTypeOfItsWeightAndReturnsThatOfX) {
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::Tensor x = sample({4, kSize}, 0.5, type) + 2, factors = sample({4, kSize}, 0.9, type);
    Outcome found = outcome_of<TypeParam>(at::kFloat, x, factors);
    Outcome expected = this->expected(at::kFloat, x, factors);
    EXPECT_EQ(found.result.scalar_type(), type);
    EXPECT_EQ(found.x_gradient.scalar_type(), type);
    EXPECT_EQ(found.weight_gradient.scalar_type(), at::kFloat);
    expect_within(rounding(type), found.result, expected.result);
    expect_within(1e-5, found.weight_gradient, expected.weight_gradient);
    // The weight was not rounded: bfloat16 weights give something else.
    Outcome rounded = outcome_of<TypeParam>(type, x, factors);
    EXPECT_FALSE(rounded.result.equal(found.result));
  }
}

TYPED_TEST(LowPrecision, ComputesInFloat32OnAFloat32InputWithANarrowWeight) {
  at::Tensor x = sample({4, kSize}, 0.5, at::kFloat), factors = sample({4, kSize}, 0.9, at::kFloat);
  Outcome found = outcome_of<TypeParam>(at::kBFloat16, x, factors);
  EXPECT_EQ(found.result.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace fsdp::nn
