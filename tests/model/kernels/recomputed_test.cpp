#include "model/kernels/recomputed.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/kernels/attention.h"
#include "model/kernels/fused.h"
#include "model/kernels/matmul.h"

namespace fsdp::kernels {
namespace {

constexpr Matmul kMatmul = Matmul::kOneDnn;

at::Tensor values(at::IntArrayRef sizes, double factor) {
  return (at::arange(c10::multiply_integers(sizes), at::kFloat) * factor).sin().view(sizes);
}

/// Sees when the memory of a tensor is given back.
using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
Weak storage_of(const at::Tensor& x) { return x.storage().getWeakStorageImpl(); }

/// norm -> gate and up -> swiglu -> down, with what the test does to results between them.
struct FeedForward {
  at::Tensor x = values({2, 8, 16}, 0.7), norm = values({16}, 0.3), gate = values({24, 16}, 0.11),
             up = values({24, 16}, 0.13), down = values({16, 24}, 0.17);
  bool keeps = false, recomputes_up = false;
  std::vector<Weak> between = {};

  std::vector<at::Tensor> operands() const { return {x, norm, gate, up, down}; }
  at::Tensor forward() {
    for (at::Tensor& operand : std::vector{x, norm, gate, up, down}) operand.set_requires_grad(true);
    const auto seen = [&](const at::Tensor& result) {
      if (keeps) keep_result(result);
      between.push_back(storage_of(result));
      return result;
    };
    const at::Tensor normed = seen(rms_norm(x, norm, 1e-5));
    const auto both = linears(normed, {gate, up}, kMatmul, recomputes_up);
    const at::Tensor activated = seen(swiglu(seen(both[0]), seen(both[1])));
    return linear(activated, down, kMatmul);
  }
  std::vector<at::Tensor> gradients(bool retain = false) {
    const at::Tensor y = forward();
    torch::autograd::variable_list results;
    for (int i = 0; i < (retain ? 2 : 1); ++i) {
      results = torch::autograd::grad({(y * y).sum()}, operands(), {}, /*retain_graph=*/retain);
    }
    return results;
  }
};

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
}

TEST(Recomputed, GradientsAreThoseOfKeptResultsBitForBit) {
  const auto expected = FeedForward{.keeps = true}.gradients();
  expect_equal(FeedForward{}.gradients(), expected);
  expect_equal(FeedForward{.recomputes_up = true}.gradients(), expected);
}

TEST(Recomputed, NormsAndActivationsAreNotKept) {
  for (const bool recomputes_up : {false, true}) {
    FeedForward layer{.recomputes_up = recomputes_up};
    const at::Tensor y = layer.forward();
    EXPECT_TRUE(layer.between[0].expired()) << "norm";
    EXPECT_EQ(layer.between[1].expired(), recomputes_up) << "gate";
    EXPECT_EQ(layer.between[2].expired(), recomputes_up) << "up";
    EXPECT_TRUE(layer.between[3].expired()) << "activation";
  }
}

TEST(Recomputed, ResultsThatMustBeKeptAre) {
  FeedForward layer{.keeps = true, .recomputes_up = true};
  const at::Tensor y = layer.forward();
  for (const Weak& result : layer.between) EXPECT_FALSE(result.expired());
}

TEST(Recomputed, AGraphThatIsRetainedComputesThemEachTime) {
  expect_equal(FeedForward{.recomputes_up = true}.gradients(/*retain=*/true), FeedForward{}.gradients());
}

TEST(Recomputed, AnActivationWithSeveralUsersGetsTheSumOfTheirGradients) {
  enum class Second { kLinear, kSum, kView };
  const auto run = [](Second second, bool keeps) {
    const at::Tensor gate = values({6, 24}, 0.7).requires_grad_(), up = values({6, 24}, 0.3).requires_grad_(),
                     w = values({16, 24}, 0.11).requires_grad_();
    const at::Tensor y = swiglu(gate * 2, up * 2);
    if (keeps) keep_result(y);
    at::Tensor loss = linear(y, w, kMatmul).square().sum();
    if (second == Second::kLinear) loss = loss + linear(y, w, kMatmul).sum();
    if (second == Second::kSum) loss = loss + y.sum();
    if (second == Second::kView) loss = loss + linear(y.view({2, 3, 24}), w, kMatmul).sum();
    return torch::autograd::grad({loss}, {gate, up, w});
  };
  for (const Second second : {Second::kLinear, Second::kSum, Second::kView}) {
    expect_equal(run(second, false), run(second, true));
  }
}

TEST(Recomputed, ASumWithARecomputedTermIsAddedAgain) {
  const auto run = [](bool recomputed, bool& expired) {
    const at::Tensor x = values({4, 16}, 0.7).requires_grad_(), w = values({16, 16}, 0.3).requires_grad_(),
                     norm = values({16}, 0.2).requires_grad_();
    at::Tensor sum, y;
    std::tie(sum, y) = add_rms_norm(x, linear(x, w, kMatmul, recomputed), norm, 1e-5);
    const Weak storage = storage_of(sum);
    const at::Tensor loss = (sum * 2).sum() + linear(y, w, kMatmul).sum();
    sum.reset();
    expired = storage.expired();
    return torch::autograd::grad({loss}, {x, w, norm});
  };
  bool expired = true;
  const auto expected = run(false, expired);
  EXPECT_FALSE(expired);
  const auto found = run(true, expired);
  EXPECT_TRUE(expired);
  expect_equal(found, expected);
}

TEST(Recomputed, HeadsAndAttentionFollowThroughViews) {
  if (!can_attend(values({1, 8, 2, 4}, 1))) GTEST_SKIP() << "no kernel of attention for this CPU";
  const at::Tensor cos = values({8, 4}, 0.5), sin = values({8, 4}, 0.6);
  const auto run = [&](bool recomputed, std::vector<Weak>& between) {
    const at::Tensor x = values({2, 8, 16}, 0.7).requires_grad_(), w = values({8, 16}, 0.3).requires_grad_(),
                     out = values({16, 8}, 0.2).requires_grad_();
    const auto qkv = linears(x, {w, w, w}, kMatmul, recomputed);
    const auto heads = [](const at::Tensor& each) { return each.view({2, 8, 2, 4}); };
    const at::Tensor q = rotary(heads(qkv[0]), cos, sin), k = rotary(heads(qkv[1]), cos, sin);
    const at::Tensor attended = causal_attention(q, k, heads(qkv[2]), kMatmul, {}, recomputed);
    for (const at::Tensor& each : {q, k, qkv[2], attended}) between.push_back(storage_of(each));
    return std::pair(linear(attended.reshape({2, 8, 8}), out, kMatmul).square().sum(),
                     std::vector{x, w, out});
  };
  std::vector<Weak> between;
  const auto [loss, operands] = run(true, between);
  for (const Weak& each : between) EXPECT_TRUE(each.expired());
  const auto [expected_loss, expected_operands] = run(false, between);
  EXPECT_TRUE(loss.equal(expected_loss));
  expect_equal(torch::autograd::grad({loss}, operands),
               torch::autograd::grad({expected_loss}, expected_operands));
}

}  // namespace
}  // namespace fsdp::kernels
