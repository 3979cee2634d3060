// Linear, norms, rotary positions, attention, feed-forward and loss against their formulas in double
// precision.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nn/attention.h"
#include "nn/feed_forward.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/norm.h"
#include "nn/rotary.h"
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
  TransposedLinear transposed(4, 5);
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
  LlamaAttention attention(options);
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
  GatedFeedForward glu(options);
  fill(glu, "gate_proj.weight", gate);
  fill(glu, "up_proj.weight", up);
  fill(glu, "down_proj.weight", down);
  at::Tensor g = at::matmul(x, gate.t());
  expect_near(glu.forward(x.to(at::kFloat)), at::matmul(g * g.sigmoid() * at::matmul(x, up.t()), down.t()));

  const auto gelu_of = [](const at::Tensor& h) {
    return h * 0.5 * (1.0 + (std::sqrt(2.0 / M_PI) * (h + 0.044715 * h.pow(3))).tanh());
  };
  options.hidden_act = Activation::kGeluTanh;
  GatedFeedForward geglu(options);
  fill(geglu, "gate_proj.weight", gate);
  fill(geglu, "up_proj.weight", up);
  fill(geglu, "down_proj.weight", down);
  expect_near(geglu.forward(x.to(at::kFloat)), at::matmul(gelu_of(g) * at::matmul(x, up.t()), down.t()));

  options = testing::tiny_options("gpt2");
  options.hidden_size = 4;
  options.intermediate_size = 6;
  GeluFeedForward gelu(options);
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
