// Attention in tiles against the formula in double precision.

#include "kernels/attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_memory.h"
#include "util/tensor_memory.h"

namespace fsdp::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor formula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = q.size(1), group = q.size(2) / k.size(2);
  auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
  at::Tensor scores = at::matmul(by_head(q), by_head(k.repeat_interleave(group, 2)).transpose(2, 3)) /
                      std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor hidden = at::ones({tokens, tokens}, at::kBool).triu(1);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return by_head(at::matmul(scores.softmax(-1), by_head(v.repeat_interleave(group, 2))));
}

struct Case {
  int64_t batch, tokens, heads, kv_heads, head_dim;
};

class Attention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    at::manual_seed(3);
    if (!can_attend(at::empty({1, 1, 1, 2}, GetParam()))) GTEST_SKIP() << "not on this CPU";
  }

  /// The result and the gradients of q, k, v.
  template <typename Function>
  static Tensors run(const Function& function, const Tensors& inputs, const at::Tensor& dy) {
    Tensors leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
    at::Tensor y = function(leaves[0], leaves[1], leaves[2]);
    Tensors results = {y.detach()};
    for (at::Tensor& gradient : torch::autograd::grad({y}, leaves, {dy.to(y.scalar_type())})) {
      results.push_back(gradient);
    }
    return results;
  }

  static void expect_formula(const Tensors& inputs, const std::string& what) {
    const at::Tensor dy = at::randn(inputs[0].sizes()).to(GetParam());
    Tensors high;
    for (const at::Tensor& input : inputs) high.push_back(input.to(at::kDouble));
    const Tensors ours = run(causal_attention, inputs, dy), expected = run(formula, high, dy);
    const double tolerance = GetParam() == at::kFloat ? 1e-5 : 2e-2;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double error = (ours[i].to(at::kDouble) - expected[i]).abs().max().item<double>();
      EXPECT_LE(error, tolerance * expected[i].abs().max().item<double>()) << what << ", result " << i;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Types, Attention, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "fp32" : "bf16"; });

TEST_P(Attention, IsTheFormulaWhateverTheLengthAndTheHeads) {
  for (const Case& c :
       {Case{2, 64, 2, 2, 64}, Case{1, 1, 1, 1, 8}, Case{1, 2, 3, 1, 2}, Case{3, 63, 4, 2, 16},
        Case{1, 65, 2, 1, 32}, Case{2, 129, 2, 2, 10}, Case{1, 577, 4, 2, 64}, Case{1, 1100, 1, 1, 128}}) {
    auto random = [&](int64_t heads) {
      return (at::randn({c.batch, c.tokens, heads, c.head_dim}) * 2).to(GetParam());
    };
    expect_formula({random(c.heads), random(c.kv_heads), random(c.kv_heads)},
                   std::to_string(c.tokens) + " tokens");
  }
}

TEST_P(Attention, TakesPartsOfOneTensor) {
  const at::Tensor qkv = at::randn({2, 70, 3 * 4 * 16}).to(GetParam());
  Tensors parts = qkv.chunk(3, -1);
  for (at::Tensor& part : parts) part = part.view({2, 70, 4, 16});
  expect_formula(parts, "strided");
}

TEST_P(Attention, OfLargeScoresIsFinite) {
  auto random = [&] { return (at::randn({1, 40, 1, 16}) * 60).to(GetParam()); };
  for (const at::Tensor& result :
       run(causal_attention, {random(), random(), random()}, at::ones({1, 40, 1, 16}))) {
    EXPECT_TRUE(at::isfinite(result).all().item<bool>());
  }
}

TEST_P(Attention, DoesNotDependOnTheNumberOfThreads) {
  const Tensors inputs = {at::randn({2, 100, 4, 32}).to(GetParam()),
                          at::randn({2, 100, 2, 32}).to(GetParam()),
                          at::randn({2, 100, 2, 32}).to(GetParam())};
  const at::Tensor dy = at::randn({2, 100, 4, 32});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors one = run(causal_attention, inputs, dy);
  at::set_num_threads(3);
  const Tensors three = run(causal_attention, inputs, dy);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(three[i])) << i;
}

TEST_P(Attention, TakesTheMemoryThatAPlanCounts) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const AttentionSizes sizes = {
      .tokens = 300, .head_dim = 32, .element = static_cast<int64_t>(c10::elementSize(GetParam()))};
  Tensors inputs(3);
  for (at::Tensor& input : inputs) input = at::randn({2, 300, 2, 32}).to(GetParam()).requires_grad_(true);
  const int64_t one = static_cast<int64_t>(inputs[0].nbytes());
  util::TensorMemory memory;
  at::Tensor y = causal_attention(inputs[0], inputs[1], inputs[2]);
  EXPECT_EQ(memory.peak_bytes(), one + 2 * 2 * 300 * 4 + sizes.forward_bytes());
  at::Tensor dy = at::ones_like(y);
  memory.reset_peak();
  torch::autograd::grad({y}, inputs, {dy});
  EXPECT_EQ(memory.peak_bytes(), 5 * one + 2 * 2 * 300 * 4 + sizes.backward_bytes());
  at::set_num_threads(before);
}

}  // namespace
}  // namespace fsdp::kernels
