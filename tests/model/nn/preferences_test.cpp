// Losses of preferences beside the formulas of the papers, which are written here once more in plain numbers.

#include "model/nn/preferences.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/util/error.h"

namespace fsdp::nn {
namespace {

/// Numbers of one answer.
struct ScoredAnswer {
  double log_prob, reference, tokens;
  bool preferred;
};

/// Three pairs: a good one, a wrong one, and one beyond every margin.
const std::vector<ScoredAnswer> kScoredPairs = {{-4.5, -6, 5, true},  {-9, -7, 8, false},
                                                {-30, -21, 12, true}, {-8, -14, 3, false},
                                                {-20, -70, 6, true},  {-90, -30, 9, false}};

enum Relation { kRelative, kAlone };

at::Tensor column_of(const std::vector<ScoredAnswer>& answers, double ScoredAnswer::*member) {
  std::vector<double> values;
  for (const ScoredAnswer& answer : answers) values.push_back(answer.*member);
  return at::tensor(values, at::kDouble);
}

CompletionScores scores_of(const std::vector<ScoredAnswer>& answers, Relation relation) {
  CompletionScores scores;
  scores.log_probs = column_of(answers, &ScoredAnswer::log_prob);
  if (relation == kRelative) scores.references = column_of(answers, &ScoredAnswer::reference);
  scores.tokens = column_of(answers, &ScoredAnswer::tokens);
  scores.preferred = at::empty({std::ssize(answers)}, at::kBool);
  for (size_t i = 0; i < answers.size(); ++i)
    scores.preferred[static_cast<int64_t>(i)] = answers[i].preferred;
  return scores;
}

std::vector<double> losses_by(const std::string& name, const CompletionScores& scores,
                              const PreferenceOptions& options) {
  const at::Tensor found = preference_losses(name, scores, options, {}).contiguous();
  return {found.const_data_ptr<double>(), found.const_data_ptr<double>() + found.numel()};
}

double plain_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

using PairFormula = std::function<double(const ScoredAnswer& chosen, const ScoredAnswer& rejected)>;

/// Expects the losses that the formula gives, and at least two different ones.
void expect_formula(const std::string& name, const PreferenceOptions& options, Relation relation,
                    const PairFormula& formula, const std::vector<ScoredAnswer>& answers = kScoredPairs) {
  SCOPED_TRACE(name);
  const std::vector<double> found = losses_by(name, scores_of(answers, relation), options);
  ASSERT_EQ(found.size(), answers.size() / 2);
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = formula(answers[2 * i], answers[2 * i + 1]);
    EXPECT_NEAR(found[i], expected, 1e-12 * std::max(1.0, std::abs(expected))) << i;
  }
  EXPECT_NE(found[0], found[1]);
}

double gain(const ScoredAnswer& answer) { return answer.log_prob - answer.reference; }
double margin(const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
  return gain(chosen) - gain(rejected);
}

TEST(PreferenceLosses, DpoIsTheLogisticLossOfTheMargin) {
  for (const double beta : {0.1, 0.5}) {
    expect_formula("dpo", {.beta = beta}, kRelative,
                   [&](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
                     return -std::log(plain_sigmoid(beta * margin(chosen, rejected)));
                   });
  }
  // Without a difference each label is as likely.
  EXPECT_NEAR(losses_by("dpo", scores_of({{-3, -3, 2, true}, {-7, -7, 4, false}}, kRelative), {})[0],
              std::log(2.0), 1e-15);
}

TEST(PreferenceLosses, DpoWithSmoothingExpectsExchangedLabels) {
  expect_formula("dpo", {.beta = 0.2, .label_smoothing = 0.1}, kRelative,
                 [](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
                   const double p = plain_sigmoid(0.2 * margin(chosen, rejected));
                   return -0.9 * std::log(p) - 0.1 * std::log(plain_sigmoid(-0.2 * margin(chosen, rejected)));
                 });
}

TEST(PreferenceLosses, DpoByLengthComparesMeans) {
  expect_formula("dpo", {.beta = 0.3, .length_normalised = true}, kRelative,
                 [](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
                   return -std::log(plain_sigmoid(
                       0.3 * (gain(chosen) / chosen.tokens - gain(rejected) / rejected.tokens)));
                 });
}

TEST(PreferenceLosses, RobustIsUnbiasedUnderExchangedLabels) {
  const double wrong = 0.2, beta = 0.1;
  const PreferenceOptions options{.beta = beta, .label_smoothing = wrong};
  expect_formula("robust", options, kRelative, [&](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
    const double d = margin(chosen, rejected);
    return (-(1 - wrong) * std::log(plain_sigmoid(beta * d)) + wrong * std::log(plain_sigmoid(-beta * d))) /
           (1 - 2 * wrong);
  });
  // The mean over labels, of which a share is wrong, is the loss of right labels.
  std::vector<ScoredAnswer> exchanged = kScoredPairs;
  for (size_t i = 0; i < exchanged.size(); i += 2) std::swap(exchanged[i], exchanged[i + 1]);
  const auto right = losses_by("robust", scores_of(kScoredPairs, kRelative), options),
             other = losses_by("robust", scores_of(exchanged, kRelative), options),
             clean = losses_by("dpo", scores_of(kScoredPairs, kRelative), {.beta = beta});
  for (size_t i = 0; i < clean.size(); ++i) {
    EXPECT_NEAR((1 - wrong) * right[i] + wrong * other[i], clean[i], 1e-12);
  }
}

TEST(PreferenceLosses, HingeEndsAtItsMargin) {
  expect_formula("hinge", {.beta = 0.05}, kRelative,
                 [](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
                   return std::max(0.0, 1 - 0.05 * margin(chosen, rejected));
                 });
  EXPECT_EQ(losses_by("hinge", scores_of(kScoredPairs, kRelative), {.beta = 0.05})[2], 0);
}

TEST(PreferenceLosses, IpoAimsAtAMarginOfMeans) {
  expect_formula("ipo", {.beta = 0.25}, kRelative,
                 [](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
                   const double d = gain(chosen) / chosen.tokens - gain(rejected) / rejected.tokens;
                   return (d - 2) * (d - 2);
                 });
}

TEST(PreferenceLosses, ExoIsTheDivergenceFromSmoothedLabels) {
  const double beta = 0.1, wrong = 0.1;
  const PairFormula divergence = [&](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
    const double p = plain_sigmoid(beta * margin(chosen, rejected)),
                 q = plain_sigmoid(-beta * margin(chosen, rejected));
    return p * std::log(p / (1 - wrong)) + q * std::log(q / wrong);
  };
  expect_formula("exo_pair", {.beta = beta, .label_smoothing = wrong}, kRelative, divergence);
  // It vanishes where the model has these labels.
  const double there = std::log(9.0) / beta;
  EXPECT_NEAR(losses_by("exo_pair", scores_of({{there, 0, 1, true}, {0, 0, 1, false}}, kRelative),
                        {.beta = beta, .label_smoothing = wrong})[0],
              0, 1e-15);
}

TEST(PreferenceLosses, ApoZeroRaisesTheChosenAndLowersTheRejected) {
  expect_formula("apo_zero", {.beta = 0.1}, kRelative,
                 [](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
                   return 1 - plain_sigmoid(0.1 * gain(chosen)) + plain_sigmoid(0.1 * gain(rejected));
                 });
}

TEST(PreferenceLosses, ApoDownLowersBothAndKeepsTheirOrder) {
  expect_formula(
      "apo_down", {.beta = 0.1}, kRelative, [](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
        return plain_sigmoid(0.1 * gain(chosen)) + 1 - plain_sigmoid(0.1 * margin(chosen, rejected));
      });
}

/// Answers whose log-probabilities are means over tokens, as those of orpo and simpo.
const std::vector<ScoredAnswer> kMeansOfPairs = {
    {-0.5, 0, 5, true}, {-2, 0, 8, false}, {-3, 0, 2, true}, {-0.1, 0, 9, false}};

TEST(PreferenceLosses, OrpoComparesOdds) {
  expect_formula(
      "orpo", {.beta = 0.2}, kAlone,
      [](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
        const auto odds = [](const ScoredAnswer& answer) {
          const double p = std::exp(answer.log_prob);
          return p / (1 - p);
        };
        return -0.2 * std::log(plain_sigmoid(std::log(odds(chosen) / odds(rejected))));
      },
      kMeansOfPairs);
}

TEST(PreferenceLosses, SimpoAsksForAMargin) {
  for (const double wrong : {0.0, 0.1}) {
    expect_formula(
        "simpo", {.beta = 2, .label_smoothing = wrong, .simpo_gamma = 0.7}, kAlone,
        [&](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
          const double d = 2 * (chosen.log_prob - rejected.log_prob) - 0.7;
          return -(1 - wrong) * std::log(plain_sigmoid(d)) - wrong * std::log(plain_sigmoid(-d));
        },
        kMeansOfPairs);
  }
}

TEST(PreferenceLosses, CpoIsDpoWithoutAReference) {
  for (const double wrong : {0.0, 0.1}) {
    expect_formula("cpo", {.beta = 0.1, .label_smoothing = wrong}, kAlone,
                   [&](const ScoredAnswer& chosen, const ScoredAnswer& rejected) {
                     const double d = 0.1 * (chosen.log_prob - rejected.log_prob);
                     return -(1 - wrong) * std::log(plain_sigmoid(d)) - wrong * std::log(plain_sigmoid(-d));
                   });
  }
}

CompletionScores kto_scores(double divergence) {
  CompletionScores scores = scores_of(
      {{-4, -6, 5, true}, {-9, -7, 8, false}, {-30, -21, 12, false}, {-8, -14, 3, true}}, kRelative);
  scores.divergence = at::tensor(divergence, at::kDouble);
  return scores;
}

TEST(PreferenceLosses, KtoComparesEachAnswerWithTheDivergence) {
  for (const double divergence : {0.0, 1.5}) {
    const auto found = losses_by("kto", kto_scores(divergence),
                                 {.beta = 0.1, .desirable_weight = 1.5, .undesirable_weight = 0.7});
    ASSERT_EQ(found.size(), 4u);
    EXPECT_NEAR(found[0], 1.5 * (1 - plain_sigmoid(0.1 * (2 - divergence))), 1e-14);
    EXPECT_NEAR(found[1], 0.7 * (1 - plain_sigmoid(0.1 * (divergence - -2))), 1e-14);
    EXPECT_NEAR(found[2], 0.7 * (1 - plain_sigmoid(0.1 * (divergence - -9))), 1e-14);
    EXPECT_NEAR(found[3], 1.5 * (1 - plain_sigmoid(0.1 * (6 - divergence))), 1e-14);
  }
}

TEST(PreferenceLosses, GradientsAreThoseOfFiniteDifferences) {
  for (const std::string& name : objectives().names()) {
    if (objectives().find(name)->rows == ObjectiveRows::kTexts) continue;
    SCOPED_TRACE(name);
    const Objective& objective = *objectives().find(name);
    CompletionScores scores = objective.rows == ObjectiveRows::kSingle ? kto_scores(0.3)
                              : objective.averages
                                  ? scores_of(kMeansOfPairs, kAlone)
                                  : scores_of(kScoredPairs, objective.has_reference ? kRelative : kAlone);
    const PreferenceOptions options{.beta = 0.07, .label_smoothing = 0.1, .desirable_weight = 2};
    const at::Tensor start = scores.log_probs.clone();
    scores.log_probs = start.clone().requires_grad_();
    preference_losses(name, scores, options, {}).sum().backward();
    const at::Tensor gradient = scores.log_probs.grad();
    constexpr double kStep = 1e-5;
    for (int64_t i = 0; i < start.numel(); ++i) {
      double ends[2];
      for (int side = 0; side < 2; ++side) {
        scores.log_probs = start.clone();
        scores.log_probs[i] += side == 0 ? -kStep : kStep;
        ends[side] = preference_losses(name, scores, options, {}).sum().item<double>();
      }
      const double expected = (ends[1] - ends[0]) / (2 * kStep);
      EXPECT_NEAR(gradient[i].item<double>(), expected, 1e-7 * std::max(1.0, std::abs(expected))) << i;
    }
  }
}

TEST(PreferenceLosses, AreFiniteFarFromTheMargin) {
  for (const std::string& name : objectives().names()) {
    const Objective& objective = *objectives().find(name);
    if (objective.rows != ObjectiveRows::kPairs) continue;
    SCOPED_TRACE(name);
    // Means of log-probabilities that are almost 0 and far from it; sums of long answers.
    const double near = objective.averages ? -1e-12 : -1, far = objective.averages ? -80 : -20'000;
    for (const bool wrong : {false, true}) {
      CompletionScores scores =
          scores_of({{wrong ? far : near, 0, 4, true}, {wrong ? near : far, 0, 4, false}}, kAlone);
      scores.log_probs.requires_grad_();
      const at::Tensor loss = preference_losses(name, scores, {.label_smoothing = 0.1}, {}).sum();
      loss.backward();
      EXPECT_TRUE(loss.isfinite().item<bool>());
      EXPECT_TRUE(scores.log_probs.grad().isfinite().all().item<bool>()) << scores.log_probs.grad();
    }
  }
}

TEST(PreferenceLosses, AnUnknownObjectiveIsRefused) {
  EXPECT_THROW(preference_losses("ppo", scores_of(kScoredPairs, kRelative), {}, {}), util::Error);
}

double mean_of(const std::vector<PreferenceMetric>& metrics, const std::string& name) {
  for (const PreferenceMetric& metric : metrics) {
    if (metric.name == name) return (metric.sum / metric.count).item<double>();
  }
  return std::nan("");
}

TEST(PreferenceMetrics, AreTheMeansThatTrlNames) {
  const auto metrics =
      preference_metrics(*objectives().find("dpo"), scores_of(kScoredPairs, kRelative), {.beta = 0.1});
  ASSERT_EQ(metrics.size(), 6u);
  EXPECT_NEAR(mean_of(metrics, "rewards/chosen"), 0.1 * (1.5 - 9 + 50) / 3, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "rewards/rejected"), 0.1 * (-2.0 + 6 - 60) / 3, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "rewards/margins"), 0.1 * (3.5 - 15 + 110) / 3, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "rewards/accuracies"), 2.0 / 3, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "logps/chosen"), (-4.5 - 30 - 20) / 3, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "logps/rejected"), (-9.0 - 8 - 90) / 3, 1e-12);
}

TEST(PreferenceMetrics, ATieIsNoSuccess) {
  const auto metrics = preference_metrics(*objectives().find("dpo"),
                                          scores_of({{-3, -3, 2, true}, {-7, -7, 4, false}}, kRelative), {});
  EXPECT_EQ(mean_of(metrics, "rewards/accuracies"), 0);
}

TEST(PreferenceMetrics, OfSingleAnswersHaveNoPairs) {
  const auto metrics = preference_metrics(*objectives().find("kto"), kto_scores(0), {.beta = 0.5});
  EXPECT_NEAR(mean_of(metrics, "rewards/chosen"), 0.5 * (2 + 6) / 2, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "rewards/rejected"), 0.5 * (-2 - 9) / 2, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "logps/chosen"), -6, 1e-12);
  EXPECT_NEAR(mean_of(metrics, "logps/rejected"), -19.5, 1e-12);
  EXPECT_TRUE(std::isnan(mean_of(metrics, "rewards/accuracies")));
  EXPECT_TRUE(std::isnan(mean_of(metrics, "rewards/margins"))) << "that of the means of all ranks";
}

TEST(PreferenceMetrics, NeedNoAutograd) {
  CompletionScores scores = scores_of(kScoredPairs, kRelative);
  scores.log_probs.requires_grad_();
  for (const PreferenceMetric& metric : preference_metrics(*objectives().find("dpo"), scores, {})) {
    EXPECT_FALSE(metric.sum.requires_grad()) << metric.name;
  }
}

}  // namespace
}  // namespace fsdp::nn
