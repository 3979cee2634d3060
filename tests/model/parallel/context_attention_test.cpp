// Attention over cut sequences against that over whole ones, on threads as ranks.

#include "model/parallel/context_attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "comm/api/trace.h"
#include "comm/threads/thread_communicator.h"
#include "support/forwarding_communicator.h"

namespace fsdp::parallel {
namespace {

using comm::ContextAttention;
using Tensors = std::vector<at::Tensor>;

struct Case {
  int degree = 2;
  ContextAttention attention = ContextAttention::kGather;
  int64_t tokens = 48, heads = 4, kv_heads = 2;
  bool documents = false, fused = true;
  at::ScalarType type = at::kFloat;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << (c.attention == ContextAttention::kRing ? "Ring" : "Gather") << c.degree << "Ranks"
             << c.tokens << "Tokens" << c.heads << "By" << c.kv_heads << (c.documents ? "Documents" : "")
             << (c.fused ? "" : "Composed") << (c.type == at::kFloat ? "" : "Bf16");
}

constexpr int64_t kRows = 2, kWidth = 8;

/// Some documents end inside chunks, some with them, and one is a single token.
std::shared_ptr<const Documents> documents(const Case& c) {
  if (!c.documents) return nullptr;
  return std::make_shared<Documents>(Documents{{0, 5, 6, c.tokens / 2, c.tokens - 3}, {0, c.tokens / 4 + 1}});
}

/// Over whole sequences, in double precision.
at::Tensor whole_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Case& c) {
  const int64_t group = c.heads / c.kv_heads;
  const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
  at::Tensor hidden = at::ones({c.tokens, c.tokens}, at::kBool).triu(1).expand({kRows, 1, -1, -1}).clone();
  if (const auto all = documents(c)) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t start : (*all)[static_cast<size_t>(row)]) {
        hidden[row][0].slice(0, start).slice(1, 0, start).fill_(true);
      }
    }
  }
  const at::Tensor scores = at::matmul(by_head(q), by_head(k.repeat_interleave(group, 2)).transpose(2, 3)) /
                            std::sqrt(static_cast<double>(kWidth));
  const at::Tensor weights = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
  return by_head(at::matmul(weights, by_head(v.repeat_interleave(group, 2))));
}

/// The result and the gradients of q, k, v.
template <typename Function>
Tensors run(const Function& function, const Tensors& inputs, const at::Tensor& dy) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
  at::Tensor y = function(leaves[0], leaves[1], leaves[2]);
  Tensors results = {y.detach()};
  for (at::Tensor& gradient : torch::autograd::grad({y}, leaves, {dy.to(y.scalar_type())})) {
    results.push_back(gradient);
  }
  return results;
}

Tensors random_inputs(const Case& c) {
  at::manual_seed(5);
  const auto random = [&](int64_t heads) { return at::randn({kRows, c.tokens, heads, kWidth}).to(c.type); };
  return {random(c.heads), random(c.kv_heads), random(c.kv_heads), random(c.heads)};
}

/// Of whole sequences, put together from what the ranks have.
Tensors cut_attention(const Case& c) {
  const Tensors all = random_inputs(c);
  Tensors whole;
  for (const at::Tensor& each : {all[0], all[0], all[1], all[2]}) whole.push_back(at::empty_like(each));
  std::mutex mutex;
  comm::run_ranks_as_threads(c.degree, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    const CutSequence cut{.rank = communicator.rank(),
                          .degree = c.degree,
                          .group = testing::borrowed(communicator),
                          .attention = c.attention};
    Tensors own;
    for (const at::Tensor& each : all) own.push_back(cut.part_of(each, 1));
    const ContextAttentionOptions options{
        .cut = std::make_shared<CutSequence>(cut), .documents = documents(c), .fused = c.fused};
    const Tensors found =
        run([&](const auto& q, const auto& k, const auto& v) { return context_attention(q, k, v, options); },
            {own[0], own[1], own[2]}, own[3]);
    const int64_t length = c.tokens / (2 * c.degree);
    for (size_t i = 0; i < found.size(); ++i) {
      const std::lock_guard lock(mutex);
      for (int64_t half = 0; half < 2; ++half) {
        whole[i]
            .narrow(1, cut.chunks()[static_cast<size_t>(half)] * length, length)
            .copy_(found[i].narrow(1, half * length, length));
      }
    }
    communicator.barrier({.unit = "end"});
  });
  return whole;
}

class OverCutSequences : public ::testing::TestWithParam<Case> {};

TEST_P(OverCutSequences, IsThatOverWholeOnes) {
  const Case& c = GetParam();
  Tensors inputs = random_inputs(c);
  for (at::Tensor& input : inputs) input = input.to(at::kDouble);
  const Tensors expected =
      run([&](const auto& q, const auto& k, const auto& v) { return whole_attention(q, k, v, c); },
          {inputs[0], inputs[1], inputs[2]}, inputs[3]);
  const Tensors found = cut_attention(c);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = (found[i].to(at::kDouble) - expected[i]).abs().max().item<double>();
    EXPECT_LE(error, (c.type == at::kFloat ? 2e-6 : 2e-2) * expected[i].abs().max().item<double>())
        << "result " << i;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (ContextAttention attention : {ContextAttention::kGather, ContextAttention::kRing}) {
    for (int degree : {2, 3, 4}) {
      const Case c{.degree = degree, .attention = attention};
      all.push_back(c);
      all.push_back(c), all.back().documents = true;
      all.push_back(c), all.back().fused = false, all.back().documents = true;
    }
    const Case c{.degree = 2, .attention = attention};
    all.push_back(c), all.back().tokens = 4, all.back().kv_heads = 4;
    all.push_back(c), all.back().tokens = 1200, all.back().kv_heads = 1;
    all.push_back(c), all.back().tokens = 1200, all.back().fused = false;
    all.push_back(c), all.back().type = at::kBFloat16;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, OverCutSequences, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return ::testing::PrintToString(info.param); });

TEST(ContextAttention, OfRingAndGatherAreOne) {
  const Tensors ring = cut_attention({.degree = 4, .attention = ContextAttention::kRing}),
                gather = cut_attention({.degree = 4, .attention = ContextAttention::kGather});
  for (size_t i = 0; i < ring.size(); ++i) {
    EXPECT_LE((ring[i] - gather[i]).abs().max().item<double>(), 1e-6 * gather[i].abs().max().item<double>());
  }
}

}  // namespace
}  // namespace fsdp::parallel
