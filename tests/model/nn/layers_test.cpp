// Linear, norms, rotary positions, attention, feed-forward and loss against their formulas in double
// precision.

#include "model/nn/layers.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/nn/attention.h"
#include "model/nn/loss.h"
#include "model/nn/rotary.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

at::Tensor sample(std::vector<int64_t> shape, double phase) {
  int64_t count = c10::multiply_integers(shape);
  return (at::arange(count, at::kDouble) * 0.7 + phase).sin().view(shape);
}

void fill(torch::nn::Module& module, const std::string& name, const at::Tensor& value) {
  at::NoGradGuard no_grad;
  module.named_parameters()[name].copy_(value);
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::allclose(actual.to(at::kDouble), expected, 1e-5, 1e-5));
}

TEST(Linear, BothLayoutsMultiply) {
  at::Tensor x = sample({2, 3, 4}, 0.1), w = sample({5, 4}, 0.2), b = sample({5}, 0.3);
  Linear linear(4, 5);
  fill(linear, "weight", w);
  expect_near(linear.forward(x.to(at::kFloat)), at::matmul(x, w.t()));
  Linear transposed(4, 5, {}, {.transposed = true});
  fill(transposed, "weight", w.t());
  fill(transposed, "bias", b);
  expect_near(transposed.forward(x.to(at::kFloat)), at::matmul(x, w.t()) + b);
}

TEST(Norm, FollowsTheFormulas) {
  at::Tensor x = sample({2, 6}, 0.5), w = sample({6}, 0.6), b = sample({6}, 0.7);
  RmsNorm rms(6, 1e-5);
  fill(rms, "weight", w);
  expect_near(rms.forward(x.to(at::kFloat)), x / (x.pow(2).mean(-1, true) + 1e-5).sqrt() * w);
  LayerNorm layer(6, 1e-5);
  fill(layer, "weight", w);
  fill(layer, "bias", b);
  at::Tensor centred = x - x.mean(-1, true);
  expect_near(layer.forward(x.to(at::kFloat)),
              centred / (centred.pow(2).mean(-1, true) + 1e-5).sqrt() * w + b);
}

TEST(Norm, OnTheCpuLeavesItsInputToOtherUsers) {
  const RmsNorm rms(6, 1e-5);
  const at::Tensor x = at::ones({2, 6}).requires_grad_();
  const auto [same, normed] = rms.forward_beside(x);
  EXPECT_TRUE(same.is_same(x));
  EXPECT_TRUE(normed.equal(rms.forward(x)));
}

// Norms in low precision: the formulas in double precision, on the same rounded inputs; what is left is one
// rounding of the result.

constexpr int64_t kSize = 4096;
constexpr double kEpsilon = 1e-5;

/// Half the distance between neighbouring numbers, relative.
double rounding(at::ScalarType type) {
  return type == at::kBFloat16 ? std::ldexp(1, -8) : std::ldexp(1, -11);
}

at::Tensor sample(std::vector<int64_t> shape, double phase, at::ScalarType type) {
  return sample(std::move(shape), phase).to(type);
}

/// A norm of x, with the gradients of sum(result * factors).
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
  /// The outcome for x with weights of `weight_type`, in double precision throughout.
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

TEST(Rotary, RotatesPairsAcrossTheHalvesByThePosition) {
  ModelOptions options;
  options.head_dim = 4;
  RotaryTable table(options);
  auto [cos, sin] = table.angles(3, at::kCPU);
  at::Tensor x = sample({1, 1, 3, 4}, 0.2);
  at::Tensor actual = apply_rotary(x.to(at::kFloat), cos, sin);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 2; ++i) {
      double angle = static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(i) / 2.0);
      double a = x[0][0][t][i].item<double>(), b = x[0][0][t][i + 2].item<double>();
      EXPECT_NEAR(actual[0][0][t][i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-5);
      EXPECT_NEAR(actual[0][0][t][i + 2].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-5);
    }
  }
}

TEST(Attention, GroupedQueriesUseTheirGroupsKeys) {
  auto options = testing::tiny_options();
  options.hidden_size = 8;
  options.num_attention_heads = 4;
  options.num_key_value_heads = 2;
  Attention attention(options);
  at::Tensor x = sample({1, 3, 8}, 0.1);
  at::Tensor wq = sample({8, 8}, 0.2), wk = sample({4, 8}, 0.3), wv = sample({4, 8}, 0.4),
             wo = sample({8, 8}, 0.5);
  fill(attention, "q_proj.weight", wq);
  fill(attention, "k_proj.weight", wk);
  fill(attention, "v_proj.weight", wv);
  fill(attention, "o_proj.weight", wo);
  // Angle zero everywhere: rotary positions do nothing, so the plain formula must come out.
  StageContext context{at::ones({3, 2}), at::zeros({3, 2})};
  at::Tensor q = at::matmul(x, wq.t()), k = at::matmul(x, wk.t()), v = at::matmul(x, wv.t());
  std::vector<at::Tensor> heads;
  at::Tensor mask = at::full({3, 3}, -1e30, at::kDouble).triu(1);
  for (int64_t head = 0; head < 4; ++head) {
    auto part = [](const at::Tensor& t, int64_t index) { return t[0].narrow(1, index * 2, 2); };
    at::Tensor scores = at::matmul(part(q, head), part(k, head / 2).t()) / std::sqrt(2.0) + mask;
    heads.push_back(at::matmul(scores.softmax(-1), part(v, head / 2)));
  }
  expect_near(attention.forward(x.to(at::kFloat), context)[0], at::matmul(at::cat(heads, 1), wo.t()));
}

TEST(FeedForward, FollowsTheFormulas) {
  auto options = testing::tiny_options();
  options.hidden_size = 4;
  options.intermediate_size = 6;
  at::Tensor x = sample({2, 3, 4}, 0.1), gate = sample({6, 4}, 0.2), up = sample({6, 4}, 0.3),
             down = sample({4, 6}, 0.4);
  FeedForward glu(options, options.intermediate_size);
  fill(glu, "gate_proj.weight", gate);
  fill(glu, "up_proj.weight", up);
  fill(glu, "down_proj.weight", down);
  at::Tensor g = at::matmul(x, gate.t());
  expect_near(glu.forward(x.to(at::kFloat)), at::matmul(g * g.sigmoid() * at::matmul(x, up.t()), down.t()));

  const auto gelu_of = [](const at::Tensor& h) {
    return h * 0.5 * (1.0 + (std::sqrt(2.0 / M_PI) * (h + 0.044715 * h.pow(3))).tanh());
  };
  options.hidden_act = Activation::kGeluTanh;
  FeedForward geglu(options, options.intermediate_size);
  fill(geglu, "gate_proj.weight", gate);
  fill(geglu, "up_proj.weight", up);
  fill(geglu, "down_proj.weight", down);
  expect_near(geglu.forward(x.to(at::kFloat)), at::matmul(gelu_of(g) * at::matmul(x, up.t()), down.t()));

  options = testing::tiny_options("gpt2");
  options.hidden_size = 4;
  options.intermediate_size = 6;
  FeedForward gelu(options, options.intermediate_size);
  fill(gelu, "c_fc.weight", gate.t());
  fill(gelu, "c_fc.bias", sample({6}, 0.5));
  fill(gelu, "c_proj.weight", down.t());
  fill(gelu, "c_proj.bias", sample({4}, 0.6));
  at::Tensor activated = gelu_of(g + sample({6}, 0.5));
  expect_near(gelu.forward(x.to(at::kFloat)), at::matmul(activated, down.t()) + sample({4}, 0.6));
}

TEST(Loss, IsTheMeanOverTargetsThatCount) {
  at::Tensor logits = sample({1, 3, 5}, 0.3).to(at::kFloat);
  at::Tensor targets = at::tensor({2, -100, 4}, at::kLong).unsqueeze(0);
  at::Tensor log_probability = logits[0].to(at::kDouble).log_softmax(-1);
  double expected = -(log_probability[0][2].item<double>() + log_probability[2][4].item<double>()) / 2;
  EXPECT_NEAR(next_token_loss(logits, targets).item<double>(), expected, 1e-6);
}

TEST(Loss, IsZeroWithZeroGradientsWhereNoTargetCounts) {
  for (const kernels::LossTerms& terms :
       {kernels::LossTerms{}, kernels::LossTerms{.label_smoothing = 0.1, .z_loss = 0.01}}) {
    at::Tensor logits = sample({2, 3, 5}, 0.3).to(at::kFloat).requires_grad_();
    at::Tensor loss = next_token_loss(logits, at::full({2, 3}, -100, at::kLong), terms);
    EXPECT_EQ(loss.item<double>(), 0);
    loss.backward();
    EXPECT_TRUE(at::equal(logits.grad(), at::zeros({2, 3, 5})));
  }
}

TEST(Loss, SmoothsLabelsAndPunishesLargeSumsOverTargetsThatCount) {
  const at::Tensor logits = sample({1, 3, 5}, 0.3).to(at::kFloat);
  const at::Tensor targets = at::tensor({2, -100, 4}, at::kLong).unsqueeze(0);
  const at::Tensor log_probability = logits[0].to(at::kDouble).log_softmax(-1);
  const at::Tensor sums = logits[0].to(at::kDouble).logsumexp(-1);
  double expected = 0;
  for (const auto& [row, target] : {std::pair{0, 2}, std::pair{2, 4}}) {
    expected -=
        0.9 * log_probability[row][target].item<double>() + 0.1 * log_probability[row].mean().item<double>();
    expected += 0.01 * std::pow(sums[row].item<double>(), 2);
  }
  EXPECT_NEAR(next_token_loss(logits, targets, {.label_smoothing = 0.1, .z_loss = 0.01}).item<double>(),
              expected / 2, 1e-6);
}

TEST(Loss, IsInFloat32WhateverTheLogitsAre) {
  at::Tensor targets = at::tensor({2, 0, 4}, at::kLong).unsqueeze(0);
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::Tensor logits = (sample({1, 3, 5}, 0.3) * 9).to(type).requires_grad_();
    at::Tensor loss = next_token_loss(logits, targets);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    at::Tensor probability = logits.detach()[0].to(at::kDouble).log_softmax(-1);
    EXPECT_NEAR(loss.item<double>(), -probability.gather(1, targets[0].unsqueeze(1)).mean().item<double>(),
                1e-6);
    loss.backward();
    EXPECT_EQ(logits.grad().scalar_type(), type);
  }
}

}  // namespace
}  // namespace fsdp::nn
