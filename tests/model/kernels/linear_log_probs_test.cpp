#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/util/error.h"
#include "model/kernels/fused.h"
#include "support/counting_allocator.h"
#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

struct LogProbsCase {
  at::Tensor x, weight, targets, factors;

  LogProbsCase(int64_t rows, int64_t width, int64_t vocabulary, at::ScalarType type) {
    at::manual_seed(7);
    x = at::randn({rows, width}).to(type).requires_grad_();
    weight = at::randn({vocabulary, width}).to(type).requires_grad_();
    targets = at::randint(vocabulary, {rows}, at::kLong);
    targets[1] = kIgnored;
    factors = at::randn({rows});
    factors[2] = 0;
  }

  /// By operations of libtorch, in double precision.
  at::Tensor expected(double cap = 0) const {
    at::Tensor logits = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
    if (cap > 0) logits = (logits / cap).tanh() * cap;
    const at::Tensor counts = targets.ne(kIgnored), tokens = targets.clamp_min(0).unsqueeze(1);
    return logits.log_softmax(1).gather(1, tokens).squeeze(1) * counts;
  }
};

double largest_error(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor all = expected.to(at::kDouble);
  return ((ours.to(at::kDouble) - all).abs().max() / all.abs().max()).item<double>();
}

TEST(LinearLogProbs, AndTheirGradientsAreThoseOfSoftmax) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (double cap : {0.0, 5.0}) {
      const LogProbsCase of(37, 24, 51, type);
      const double tolerance = type == at::kFloat ? 2e-6 : 2e-2;
      const TokenLogProbs found =
          linear_log_probs(of.x, of.weight, of.targets, Matmul::kMkl, {.logit_cap = cap});
      EXPECT_EQ(found.log_probs.scalar_type(), at::kFloat);
      const at::Tensor expected = of.expected(cap);
      EXPECT_LT(largest_error(found.log_probs.detach(), expected.detach()), tolerance);
      const auto ours = torch::autograd::grad({found.log_probs}, {of.x, of.weight}, {of.factors});
      const auto theirs = torch::autograd::grad({expected}, {of.x, of.weight}, {of.factors.to(at::kDouble)});
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(ours[i].scalar_type(), type);
        EXPECT_LT(largest_error(ours[i], theirs[i]), tolerance) << type << " " << i << " " << cap;
      }
      for (int64_t row : {1, 2}) EXPECT_TRUE(ours[0][row].eq(0).all().item<bool>());
    }
  }
}

TEST(LinearLogProbs, KnowWhichTargetsAreTheLikeliest) {
  LogProbsCase of(8, 16, 33, at::kFloat);
  const at::Tensor best = at::matmul(of.x, of.weight.t()).argmax(1);
  of.targets = best.clone();
  of.targets[3] = (best[3] + 1) % 33;
  of.targets[5] = kIgnored;
  const at::Tensor is_most = linear_log_probs(of.x, of.weight, of.targets, Matmul::kMkl).is_most;
  EXPECT_FALSE(is_most.requires_grad());
  for (int64_t row = 0; row < 8; ++row) EXPECT_EQ(is_most[row].item<bool>(), row != 3 && row != 5) << row;
}

TEST(LinearLogProbs, OfManyChunksAreThoseOfOneAndKeepNone) {
  constexpr int64_t kRows = 600, kVocabulary = 1 << 16, kWidth = 8;
  ASSERT_LT(cross_entropy_chunk_rows(kRows, kVocabulary), kRows / 2);
  const LogProbsCase of(kRows, kWidth, kVocabulary, at::kFloat);
  const testing::CountingAllocator::Scope memory;
  const TokenLogProbs found = linear_log_probs(of.x, of.weight, of.targets, Matmul::kMkl);
  const int64_t chunk = cross_entropy_chunk_rows(kRows, kVocabulary) * kVocabulary * 4;
  EXPECT_LT(memory.peak_bytes(), chunk + (1 << 20));
  const auto ours = torch::autograd::grad({found.log_probs}, {of.x, of.weight}, {of.factors});
  const at::Tensor expected = of.expected();
  const auto theirs = torch::autograd::grad({expected}, {of.x, of.weight}, {of.factors.to(at::kDouble)});
  EXPECT_LT(largest_error(found.log_probs.detach(), expected.detach()), 2e-6);
  EXPECT_LT(largest_error(ours[0], theirs[0]), 1e-4);
  EXPECT_LT(largest_error(ours[1], theirs[1]), 1e-5);
}

TEST(LinearLogProbs, GradientsOfTheWeightGoToItsSink) {
  const LogProbsCase of(20, 16, 40, at::kFloat);
  TestSink& sink = TestSink::attach(of.weight);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    linear_log_probs(of.x, of.weight, of.targets, Matmul::kMkl).log_probs.backward(of.factors);
  }
  const at::Tensor plain = of.weight.detach().clone().requires_grad_();
  linear_log_probs(of.x.detach(), plain, of.targets, Matmul::kMkl).log_probs.backward(of.factors);
  EXPECT_LT(largest_error(sink.memory, 2 * plain.grad()), 1e-6);
}

TEST(LinearLogProbs, RefuseTargetsBeyondTheVocabulary) {
  LogProbsCase of(4, 16, 12, at::kFloat);
  of.targets[2] = 12;
  EXPECT_THROW(linear_log_probs(of.x, of.weight, of.targets, Matmul::kMkl), util::Error);
}

}  // namespace
}  // namespace fsdp::kernels
