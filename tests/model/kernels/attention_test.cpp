// Attention in tiles against the formula in double precision.

#include "model/kernels/attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/tensor/tensor_memory.h"
#include "base/util/error.h"
#include "base/util/matrix_units.h"
#include "model/kernels/attention_block.h"

namespace fsdp::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor formula_of(const AttentionForm& form, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v) {
  const int64_t tokens = q.size(1), group = q.size(2) / k.size(2);
  auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
  at::Tensor scores = at::matmul(by_head(q), by_head(k.repeat_interleave(group, 2)).transpose(2, 3)) *
                      (form.scale > 0 ? form.scale : 1 / std::sqrt(static_cast<double>(q.size(3))));
  if (form.cap > 0) scores = (scores / form.cap).tanh() * form.cap;
  at::Tensor hidden = at::ones({tokens, tokens}, at::kBool).triu(1);
  if (form.window > 0) hidden = hidden.logical_or(at::ones({tokens, tokens}, at::kBool).tril(-form.window));
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return by_head(at::matmul(scores.softmax(-1), by_head(v.repeat_interleave(group, 2))));
}

at::Tensor formula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return formula_of({}, q, k, v);
}

struct Case {
  int64_t batch, tokens, heads, kv_heads, head_dim;
};

struct Way {
  at::ScalarType type;
  Matmul matmul;
};

class Attention : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    at::manual_seed(3);
    if (!can_attend(at::empty({1, 1, 1, 2}, type()))) GTEST_SKIP() << "not on this CPU";
    if (GetParam().matmul == Matmul::kAmx && !util::has_matrix_unit()) GTEST_SKIP() << "no matrix unit";
  }

  static at::ScalarType type() { return GetParam().type; }
  static at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return causal_attention(q, k, v, GetParam().matmul);
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

  static void expect_formula(const Tensors& inputs, const std::string& what, const AttentionForm& form = {}) {
    const auto attention = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return causal_attention(q, k, v, GetParam().matmul, form);
    };
    const auto formula = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return formula_of(form, q, k, v);
    };
    const at::Tensor dy = at::randn(inputs[0].sizes()).to(type());
    Tensors high;
    for (const at::Tensor& input : inputs) high.push_back(input.to(at::kDouble));
    const Tensors ours = run(attention, inputs, dy), expected = run(formula, high, dy);
    const double tolerance = type() == at::kFloat ? 1e-5 : 2e-2;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double error = (ours[i].to(at::kDouble) - expected[i]).abs().max().item<double>();
      EXPECT_LE(error, tolerance * expected[i].abs().max().item<double>()) << what << ", result " << i;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, Attention,
                         ::testing::Values(Way{at::kFloat, Matmul::kOneDnn},
                                           Way{at::kBFloat16, Matmul::kOneDnn},
                                           Way{at::kBFloat16, Matmul::kAmx}),
                         [](const auto& info) {
                           return std::string(info.param.type == at::kFloat ? "fp32_" : "bf16_") +
                                  name_of(info.param.matmul);
                         });

TEST_P(Attention, IsTheFormulaWhateverTheLengthAndTheHeads) {
  for (const Case& c :
       {Case{2, 64, 2, 2, 64}, Case{1, 1, 1, 1, 8}, Case{1, 2, 3, 1, 2}, Case{3, 63, 4, 2, 16},
        Case{1, 65, 2, 1, 32}, Case{2, 129, 2, 2, 10}, Case{2, 224, 4, 2, 96}, Case{1, 1056, 2, 1, 32},
        Case{1, 577, 4, 2, 64}, Case{1, 1100, 1, 1, 128}}) {
    auto random = [&](int64_t heads) {
      return (at::randn({c.batch, c.tokens, heads, c.head_dim}) * 2).to(type());
    };
    expect_formula({random(c.heads), random(c.kv_heads), random(c.kv_heads)},
                   std::to_string(c.tokens) + " tokens");
  }
}

TEST_P(Attention, IsTheFormulaOfWindowsCapsAndScales) {
  const auto random = [](int64_t tokens) {
    const auto heads = [&](int64_t count) { return (at::randn({1, tokens, count, 32}) * 2).to(type()); };
    return Tensors{heads(2), heads(1), heads(1)};
  };
  for (const auto& [tokens, window] :
       {std::pair(70, 2), std::pair(70, 64), std::pair(320, 63), std::pair(320, 65), std::pair(320, 150),
        std::pair(1056, 64), std::pair(1100, 700)}) {
    expect_formula(random(tokens), concat(tokens, " tokens in a window of ", window), {.window = window});
  }
  expect_formula(random(130), "scale", {.scale = 0.3});
  expect_formula(random(130), "cap", {.cap = 2});
  expect_formula(random(320), "all", {.scale = 0.1, .window = 100, .cap = 5});
}

TEST_P(Attention, AQueryMaySeeNoKeyOfATileThatOthersSee) {
  const auto random = [](int64_t tokens) { return at::randn({1, tokens, 2, 32}).to(type()); };
  const AttentionInputs in{.q = random(40), .k = random(530), .v = random(530), .matmul = GetParam().matmul};
  const AttentionOutputs found = attention_block(in, /*fused=*/true),
                         expected = attention_block(in, /*fused=*/false);
  const double tolerance = type() == at::kFloat ? 1e-5 : 2e-2;
  EXPECT_TRUE(at::allclose(found.y.to(at::kFloat), expected.y.to(at::kFloat), 0, tolerance));
  EXPECT_TRUE(at::allclose(found.log_sums, expected.log_sums, 0, tolerance));
}

TEST_P(Attention, TakesPartsOfOneTensor) {
  const at::Tensor qkv = at::randn({2, 70, 3 * 4 * 16}).to(type());
  Tensors parts = qkv.chunk(3, -1);
  for (at::Tensor& part : parts) part = part.view({2, 70, 4, 16});
  expect_formula(parts, "strided");
}

TEST_P(Attention, TakesOneTokenForAll) {
  const auto random = [](int64_t tokens) { return at::randn({2, tokens, 2, 32}).to(type()); };
  const auto repeated = [&] { return random(1).expand({2, 64, 2, 32}); };
  expect_formula({repeated(), random(64), random(64)}, "queries without a stride");
}

TEST_P(Attention, OfLargeScoresIsFinite) {
  auto random = [&] { return (at::randn({1, 40, 1, 16}) * 60).to(type()); };
  for (const at::Tensor& result : run(attention, {random(), random(), random()}, at::ones({1, 40, 1, 16}))) {
    EXPECT_TRUE(at::isfinite(result).all().item<bool>());
  }
}

TEST_P(Attention, DoesNotDependOnTheNumberOfThreads) {
  const Tensors inputs = {at::randn({2, 100, 4, 32}).to(type()), at::randn({2, 100, 2, 32}).to(type()),
                          at::randn({2, 100, 2, 32}).to(type())};
  const at::Tensor dy = at::randn({2, 100, 4, 32});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors one = run(attention, inputs, dy);
  at::set_num_threads(3);
  const Tensors three = run(attention, inputs, dy);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(three[i])) << i;
}

/// Attention to `keys` keys, the last queries of which are the queries of a block, and to the others.
TEST_P(Attention, IsTheFormulaInBlocksThatAreMerged) {
  for (const auto& [queries, keys] :
       {std::pair(64, 256), std::pair(70, 133), std::pair(1, 9), std::pair(130, 640)}) {
    const auto random = [](int64_t tokens, int64_t heads) {
      return at::randn({2, tokens, heads, 16}).to(type());
    };
    const at::Tensor all_q = random(keys, 4), k = random(keys, 2), v = random(keys, 2),
                     dy = random(queries, 4);
    const at::Tensor q = all_q.narrow(1, keys - queries, queries);
    Tensors leaves;
    for (const at::Tensor& x : {all_q, k, v}) leaves.push_back(x.to(at::kDouble).requires_grad_(true));
    const at::Tensor expected = formula(leaves[0], leaves[1], leaves[2]).narrow(1, keys - queries, queries);
    const auto gradients = torch::autograd::grad({expected}, leaves, {dy.to(at::kDouble)});

    const int64_t earlier = (keys - queries) / 2;  // seen as a whole
    const auto block = [&](int64_t first, int64_t count, bool causal) {
      return AttentionInputs{.q = q,
                             .k = k.narrow(1, first, count),
                             .v = v.narrow(1, first, count),
                             .causal = causal,
                             .matmul = GetParam().matmul};
    };
    const AttentionInputs before = block(0, earlier, false), own = block(earlier, keys - earlier, true);
    AttentionOutputs sum = attention_block(own);
    sum.y = sum.y.to(at::kFloat);
    merge_attention(sum, attention_block(before));
    const AttentionOutputs of{sum.y.to(type()), sum.log_sums};
    const AttentionGradients one = attention_block_backward(before, of, dy),
                             other = attention_block_backward(own, of, dy);
    const auto expect_near = [&](const at::Tensor& found, const at::Tensor& wanted, const char* what) {
      const double error = (found.to(at::kDouble) - wanted).abs().max().item<double>();
      EXPECT_LE(error, (type() == at::kFloat ? 1e-5 : 2e-2) * wanted.abs().max().item<double>())
          << what << " of " << queries << " by " << keys;
    };
    expect_near(sum.y, expected.detach(), "y");
    expect_near(one.dq + other.dq, gradients[0].narrow(1, keys - queries, queries), "dq");
    expect_near(at::cat({one.dk, other.dk}, 1), gradients[1], "dk");
    expect_near(at::cat({one.dv, other.dv}, 1), gradients[2], "dv");
  }
}

TEST_P(Attention, TakesTheMemoryThatAPlanCounts) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const AttentionSizes sizes = {
      .tokens = 300, .seen = 300, .head_dim = 32, .element = static_cast<int64_t>(c10::elementSize(type()))};
  Tensors inputs(3);
  for (at::Tensor& input : inputs) input = at::randn({2, 300, 2, 32}).to(type()).requires_grad_(true);
  const int64_t one = static_cast<int64_t>(inputs[0].nbytes());
  util::TensorMemory memory;
  at::Tensor y = attention(inputs[0], inputs[1], inputs[2]);
  EXPECT_EQ(memory.peak_bytes(), one + 2 * 2 * 300 * 4 + sizes.forward_bytes());
  at::Tensor dy = at::ones_like(y);
  memory.reset_peak();
  torch::autograd::grad({y}, inputs, {dy});
  EXPECT_EQ(memory.peak_bytes(), 5 * one + 2 * 2 * 300 * 4 + sizes.backward_bytes());
  at::set_num_threads(before);
}

}  // namespace
}  // namespace fsdp::kernels
