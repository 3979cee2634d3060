#include "model/kernels/linear_divergence.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"
#include "model/kernels/fused.h"
#include "support/counting_allocator.h"
#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

/// Sum over events of exp(log_probs) * values. [rows, events] -> [rows]
at::Tensor expected_value(const at::Tensor& log_probs, const at::Tensor& values) {
  return (log_probs.exp() * values).sum(1);
}

at::Tensor with_the_rest(const at::Tensor& log_probs) {
  return at::cat({log_probs, (1 - log_probs.exp().sum(1, /*keepdim=*/true)).log()}, 1);
}

struct DivergenceCase {
  at::Tensor x, weight, targets, factors, scores;  ///< scores: the teacher's logits, fp32
  DivergenceTerms terms;
  TeacherRows teacher;

  DivergenceCase(int64_t rows, int64_t width, int64_t vocabulary, at::ScalarType type,
                 const DivergenceTerms& given, int64_t top_k = 0)
      : terms(given) {
    at::manual_seed(11);
    x = at::randn({rows, width}).to(type).requires_grad_();
    weight = (at::randn({vocabulary, width}) / 2).to(type).requires_grad_();
    targets = at::randint(vocabulary, {rows}, at::kLong);
    targets[1] = kIgnored;
    factors = at::randn({rows});
    factors[2] = 0;
    scores = at::randn({rows, vocabulary}) * 2;
    teacher = top_k > 0 ? likeliest_tokens(scores, top_k, terms.temperature) : TeacherRows{.logits = scores};
  }

  at::Tensor ours() const { return linear_divergence(x, weight, targets, teacher, terms, Matmul::kMkl); }

  at::Tensor logits(at::ScalarType type) const {
    const at::Tensor plain = at::matmul(x.to(type), weight.to(type).t());
    return terms.logit_cap > 0 ? (plain / terms.logit_cap).tanh() * terms.logit_cap : plain;
  }

  /// The losses by operations of libtorch, in double precision.
  at::Tensor expected() const {
    const at::Tensor model = logits(at::kDouble);
    const double t = terms.temperature, b = terms.beta;
    at::Tensor p = (model / t).log_softmax(1), q = (scores.to(at::kDouble) / t).log_softmax(1);
    if (teacher.ids.defined()) {
      q = with_the_rest(q.gather(1, teacher.ids));
      p = with_the_rest(p.gather(1, teacher.ids));
    }
    at::Tensor divergence = b == 0 ? expected_value(q, q - p) : expected_value(p, p - q);
    if (b > 0 && b < 1) {
      const at::Tensor mixture = (b * q.exp() + (1 - b) * p.exp()).log();
      divergence = b * expected_value(q, q - mixture) + (1 - b) * expected_value(p, p - mixture);
    }
    const at::Tensor counts = targets.ne(kIgnored), tokens = targets.clamp_min(0).unsqueeze(1);
    const at::Tensor entropy = -model.log_softmax(1).gather(1, tokens).squeeze(1);
    return (terms.alpha * divergence + (1 - terms.alpha) * entropy) * counts;
  }
};

double divergence_error(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor all = expected.to(at::kDouble);
  return ((ours.to(at::kDouble) - all).abs().max() / all.abs().max()).item<double>();
}

std::vector<at::Tensor> gradients_of_divergence(const DivergenceCase& of, const at::Tensor& losses) {
  return torch::autograd::grad({losses}, {of.x, of.weight}, {of.factors.to(losses.scalar_type())});
}

std::string text_of(const DivergenceTerms& terms, int64_t top_k) {
  return concat("beta ", terms.beta, ", temperature ", terms.temperature, ", alpha ", terms.alpha, ", cap ",
                terms.logit_cap, ", top_k ", top_k);
}

std::vector<DivergenceTerms> all_terms() {
  std::vector<DivergenceTerms> all;
  for (double beta : {0.0, 0.3, 1.0}) {
    all.push_back({.beta = beta});
    all.push_back({.beta = beta, .temperature = 2.5});
    all.push_back({.beta = beta, .temperature = 0.7, .alpha = 0.6});
    all.push_back({.beta = beta, .alpha = 0.25, .logit_cap = 5});
  }
  all.push_back({.alpha = 0});
  return all;
}

class DivergenceOf : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(DivergenceOf, IsThatOfLibtorchWithItsGradients) {
  const double tolerance = GetParam() == at::kFloat ? 5e-6 : 3e-2;
  for (const DivergenceTerms& terms : all_terms()) {
    for (int64_t top_k : {0, 1, 7}) {
      const DivergenceCase of(37, 24, 51, GetParam(), terms, top_k);
      const at::Tensor losses = of.ours(), expected = of.expected();
      EXPECT_EQ(losses.scalar_type(), at::kFloat);
      EXPECT_LT(divergence_error(losses.detach(), expected.detach()), tolerance) << text_of(terms, top_k);
      const auto found = gradients_of_divergence(of, losses), theirs = gradients_of_divergence(of, expected);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(found[i].scalar_type(), GetParam());
        EXPECT_LT(divergence_error(found[i], theirs[i]), tolerance) << i << ", " << text_of(terms, top_k);
      }
      EXPECT_EQ(losses[1].item<float>(), 0);
      for (int64_t row : {1, 2}) EXPECT_TRUE(found[0][row].eq(0).all().item<bool>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DivergenceOf, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(LinearDivergence, OfLogitsIsTheSameAndDifferentiable) {
  for (const DivergenceTerms& terms : all_terms()) {
    for (int64_t top_k : {0, 7}) {
      const DivergenceCase of(37, 24, 51, at::kFloat, terms, top_k);
      const at::Tensor fused = of.ours(),
                       composed = divergence_of_logits(of.logits(at::kFloat), of.targets, of.teacher, terms);
      EXPECT_LT(divergence_error(composed.detach(), fused.detach()), 2e-6) << text_of(terms, top_k);
      const auto ours = gradients_of_divergence(of, fused), theirs = gradients_of_divergence(of, composed);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LT(divergence_error(theirs[i], ours[i]), 5e-6) << i << ", " << text_of(terms, top_k);
      }
    }
  }
}

TEST(LinearDivergence, OfEqualDistributionsIsZeroAndHasNoGradient) {
  for (double beta : {0.0, 0.3, 1.0}) {
    for (int64_t top_k : {0, 7}) {
      DivergenceCase of(12, 16, 33, at::kFloat, {.beta = beta, .temperature = 1.5});
      const at::Tensor own = of.logits(at::kFloat).detach();
      of.teacher = top_k > 0 ? likeliest_tokens(own, top_k, 1.5) : TeacherRows{.logits = own};
      const at::Tensor losses = of.ours();
      EXPECT_LT(losses.abs().max().item<double>(), 2e-6) << beta;
      for (const at::Tensor& gradient : gradients_of_divergence(of, losses)) {
        EXPECT_LT(gradient.abs().max().item<double>(), 2e-6) << beta;
      }
    }
  }
}

TEST(LinearDivergence, SurvivesATeacherWithoutDoubt) {
  for (double beta : {0.0, 0.3, 1.0}) {
    DivergenceCase of(6, 16, 33, at::kFloat, {.beta = beta}, /*top_k=*/3);
    of.teacher.log_probs.copy_(at::tensor({0.0F, -104.0F, -200.0F}).expand({6, 3}));
    const at::Tensor losses = of.ours();
    EXPECT_TRUE(losses.isfinite().all().item<bool>()) << beta;
    for (const at::Tensor& gradient : gradients_of_divergence(of, losses)) {
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << beta;
    }
  }
}

/// Sizes that take two chunks of rows, of 5 and of 1.
constexpr int64_t kManyRows = 6, kManyTokens = 3 << 20;

TEST(LinearDivergence, OfManyChunksIsThatOfEachAndKeepsNoLogits) {
  ASSERT_EQ(cross_entropy_chunk_rows(kManyRows, kManyTokens), kManyRows - 1);
  for (int64_t top_k : {0, 5}) {
    const DivergenceCase of(kManyRows, 4, kManyTokens, at::kFloat, {.beta = 0.3, .alpha = 0.5}, top_k);
    at::Tensor losses;
    {
      const testing::CountingAllocator::Scope memory;
      losses = of.ours();
      EXPECT_LT(memory.live_bytes(), 1 << 16) << top_k;
    }
    const auto ours = gradients_of_divergence(of, losses);
    at::Tensor of_weight = at::zeros_like(ours[1]);
    for (int64_t first : {0, 3}) {  // ranges that are one chunk each
      const auto part = [&](const at::Tensor& all) { return all.defined() ? all.narrow(0, first, 3) : all; };
      const at::Tensor x = part(of.x).detach().requires_grad_(), weight = of.weight.detach().requires_grad_();
      const TeacherRows teacher{part(of.teacher.logits), part(of.teacher.ids), part(of.teacher.log_probs)};
      const at::Tensor expected =
          linear_divergence(x, weight, part(of.targets), teacher, of.terms, Matmul::kMkl);
      EXPECT_LT(divergence_error(part(losses).detach(), expected.detach()), 1e-6) << top_k;
      const auto theirs = torch::autograd::grad({expected}, {x, weight}, {part(of.factors)});
      EXPECT_LT(divergence_error(part(ours[0]), theirs[0]), 1e-5) << top_k;
      of_weight += theirs[1];
    }
    EXPECT_LT(divergence_error(ours[1], of_weight), 1e-5) << top_k;
  }
}

TEST(LinearDivergence, ComputesNoGradientOfWhatIsFrozen) {
  const DivergenceCase of(20, 16, 40, at::kFloat, {.beta = 0.3});
  const auto whole = gradients_of_divergence(of, of.ours());
  const at::Tensor x = of.x.detach(), weight = of.weight.detach();
  const auto only = [&](const at::Tensor& input, const at::Tensor& head, const at::Tensor& wanted) {
    const at::Tensor losses = linear_divergence(input, head, of.targets, of.teacher, of.terms, Matmul::kMkl);
    return torch::autograd::grad({losses}, {wanted}, {of.factors})[0];
  };
  EXPECT_TRUE(only(of.x, weight, of.x).equal(whole[0]));
  EXPECT_TRUE(only(x, of.weight, of.weight).equal(whole[1]));
  EXPECT_FALSE(linear_divergence(x, weight, of.targets, of.teacher, of.terms, Matmul::kMkl).requires_grad());
}

TEST(LinearDivergence, GradientsOfTheWeightGoToItsSink) {
  // The product of a single chunk is written into the sink.
  for (const auto& [rows, vocabulary] : {std::pair<int64_t, int64_t>{20, 40}, {kManyRows, kManyTokens}}) {
    const DivergenceCase of(rows, 4, vocabulary, at::kFloat, {.beta = 0.3}, /*top_k=*/5);
    TestSink& sink = TestSink::attach(of.weight);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) of.ours().backward(of.factors);
    const at::Tensor plain = of.weight.detach().clone().requires_grad_();
    linear_divergence(of.x.detach(), plain, of.targets, of.teacher, of.terms, Matmul::kMkl)
        .backward(of.factors);
    EXPECT_LT(divergence_error(sink.memory, 2 * plain.grad()), 1e-6) << rows;
  }
}

TEST(LinearDivergence, RefusesTargetsBeyondTheVocabulary) {
  DivergenceCase of(4, 16, 12, at::kFloat, {});
  of.targets[3] = 12;
  EXPECT_THROW(of.ours(), util::Error);
}

TEST(LikeliestTokens, AreThoseOfTheSoftmaxInDescendingOrder) {
  for (double cap : {0.0, 5.0}) {
    const DivergenceCase of(40, 8, 500, at::kFloat, {.temperature = 1.5, .logit_cap = cap});
    const TeacherRows found = likeliest_tokens(of.x, of.weight, 6, of.terms, Matmul::kMkl);
    EXPECT_FALSE(found.logits.defined() || found.log_probs.requires_grad());
    EXPECT_EQ(found.ids.scalar_type(), at::kLong);
    EXPECT_EQ(found.log_probs.scalar_type(), at::kFloat);
    const at::Tensor log_probs = (of.logits(at::kDouble).detach() / 1.5).log_softmax(1);
    const auto [values, ids] = log_probs.topk(6, 1);
    EXPECT_LT(divergence_error(found.log_probs, values), 2e-6) << cap;
    EXPECT_LT(divergence_error(log_probs.gather(1, found.ids), values), 2e-6) << "up to almost equal tokens";
    EXPECT_TRUE(found.log_probs.slice(1, 1).le(found.log_probs.slice(1, 0, 5)).all().item<bool>());
  }
}

TEST(LikeliestTokens, OfManyChunksAreThoseOfEach) {
  const DivergenceCase of(kManyRows, 4, kManyTokens, at::kFloat, {});
  const TeacherRows all = likeliest_tokens(of.x, of.weight, 3, of.terms, Matmul::kMkl),
                    last = likeliest_tokens(of.x.narrow(0, 3, 3), of.weight, 3, of.terms, Matmul::kMkl);
  EXPECT_TRUE(all.ids.narrow(0, 3, 3).equal(last.ids));
  EXPECT_LT(divergence_error(all.log_probs.narrow(0, 3, 3), last.log_probs), 1e-6);
}

TEST(LikeliestTokens, AreAtMostAsManyAsTheVocabularyHas) {
  const DivergenceCase of(5, 16, 12, at::kFloat, {});
  for (const TeacherRows& found : {likeliest_tokens(of.x, of.weight, 20, of.terms, Matmul::kMkl),
                                   likeliest_tokens(of.logits(at::kFloat), 20, 1.0)}) {
    EXPECT_EQ(found.ids.sizes(), (at::IntArrayRef{5, 12}));
    EXPECT_LT((found.log_probs.exp().sum(1) - 1).abs().max().item<double>(), 1e-5);
  }
}

}  // namespace
}  // namespace fsdp::kernels
