#include "model/nn/preferences.h"

#include <ATen/Functions.h>

#include <cmath>
#include <map>

#include "base/util/error.h"

namespace fsdp::nn {
namespace {

at::Tensor minus_log_sigmoid(const at::Tensor& x) { return -at::log_sigmoid(x); }

/// log(1 - exp(x)) for x < 0, without cancellation.
at::Tensor log_of_rest(const at::Tensor& x) {
  return at::where(x < -std::log(2.0), at::log1p(-x.exp()), (-at::expm1(x)).log());
}

/// The loss of a pair whose label is wrong with probability `smoothing`.
at::Tensor smoothed(const at::Tensor& logits, double smoothing) {
  const at::Tensor loss = minus_log_sigmoid(logits);
  return smoothing == 0 ? loss : (1 - smoothing) * loss + smoothing * minus_log_sigmoid(-logits);
}

/// Scores of pairs.
struct Pairs {
  at::Tensor chosen, rejected;                ///< relative to the reference, where there is one
  at::Tensor chosen_tokens, rejected_tokens;  ///< numbers of tokens

  at::Tensor difference() const { return chosen - rejected; }
  at::Tensor difference_of_means() const { return chosen / chosen_tokens - rejected / rejected_tokens; }
};

at::Tensor dpo(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor difference = options.length_normalised ? pairs.difference_of_means() : pairs.difference();
  return smoothed(options.beta * difference, options.label_smoothing);
}

at::Tensor robust(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor logits = options.beta * pairs.difference();
  const double wrong = options.label_smoothing;
  return ((1 - wrong) * minus_log_sigmoid(logits) - wrong * minus_log_sigmoid(-logits)) / (1 - 2 * wrong);
}

at::Tensor hinge(const Pairs& pairs, const PreferenceOptions& options) {
  return at::relu(1 - options.beta * pairs.difference());
}

at::Tensor ipo(const Pairs& pairs, const PreferenceOptions& options) {
  return (pairs.difference_of_means() - 1 / (2 * options.beta)).square();
}

at::Tensor exo_pair(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor logits = options.beta * pairs.difference();
  const double wrong = options.label_smoothing;
  return at::sigmoid(logits) * (at::log_sigmoid(logits) - std::log1p(-wrong)) +
         at::sigmoid(-logits) * (at::log_sigmoid(-logits) - std::log(wrong));
}

at::Tensor apo_zero(const Pairs& pairs, const PreferenceOptions& options) {
  return at::sigmoid(-options.beta * pairs.chosen) + at::sigmoid(options.beta * pairs.rejected);
}

at::Tensor apo_down(const Pairs& pairs, const PreferenceOptions& options) {
  return at::sigmoid(options.beta * pairs.chosen) + at::sigmoid(-options.beta * pairs.difference());
}

at::Tensor orpo(const Pairs& pairs, const PreferenceOptions& options) {
  const at::Tensor log_odds = pairs.difference() - (log_of_rest(pairs.chosen) - log_of_rest(pairs.rejected));
  return options.beta * minus_log_sigmoid(log_odds);
}

at::Tensor simpo(const Pairs& pairs, const PreferenceOptions& options) {
  return smoothed(options.beta * pairs.difference() - options.simpo_gamma, options.label_smoothing);
}

at::Tensor cpo(const Pairs& pairs, const PreferenceOptions& options) {
  return smoothed(options.beta * pairs.difference(), options.label_smoothing);
}

using PairLoss = at::Tensor (*)(const Pairs&, const PreferenceOptions&);
const std::map<std::string, PairLoss> kPairLosses = {{"dpo", &dpo},           {"robust", &robust},
                                                     {"hinge", &hinge},       {"ipo", &ipo},
                                                     {"exo_pair", &exo_pair}, {"apo_zero", &apo_zero},
                                                     {"apo_down", &apo_down}, {"orpo", &orpo},
                                                     {"simpo", &simpo},       {"cpo", &cpo}};

at::Tensor kto(const CompletionScores& scores, const PreferenceOptions& options) {
  const at::Tensor gain = options.beta * (scores.relative() - scores.divergence);
  const at::Tensor preferred = scores.preferred.to(gain.scalar_type()), other = 1 - preferred;
  const at::Tensor weight = options.desirable_weight * preferred + options.undesirable_weight * other;
  return weight * at::sigmoid((other - preferred) * gain);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> chosen_and_rejected(const at::Tensor& values) {
  const at::Tensor pairs = values.view({-1, 2});
  return {pairs.select(1, 0), pairs.select(1, 1)};
}

at::Tensor preference_losses(const std::string& name, const CompletionScores& scores,
                             const PreferenceOptions& options, const util::PluginValues& values) {
  const Objective& objective = objectives().get(name, "training.objective");
  if (objective.loss) return objective.loss(scores, options, values);
  if (objective.rows == ObjectiveRows::kSingle) return kto(scores, options);
  const auto [chosen, rejected] = chosen_and_rejected(scores.relative());
  const auto [chosen_tokens, rejected_tokens] = chosen_and_rejected(scores.tokens);
  const auto found = kPairLosses.find(name);
  FSDP_CHECK(found != kPairLosses.end(), "objective ", name);
  return found->second({chosen, rejected, chosen_tokens, rejected_tokens}, options);
}

std::vector<PreferenceMetric> preference_metrics(const Objective& objective, const CompletionScores& scores,
                                                 const PreferenceOptions& options) {
  const at::Tensor log_probs = scores.log_probs.detach();
  const at::Tensor rewards = options.beta * scores.relative().detach();
  const at::Tensor preferred = scores.preferred.to(at::kDouble), other = 1 - preferred;
  std::vector<PreferenceMetric> metrics = {{"rewards/chosen", (rewards * preferred).sum(), preferred.sum()},
                                           {"rewards/rejected", (rewards * other).sum(), other.sum()},
                                           {"logps/chosen", (log_probs * preferred).sum(), preferred.sum()},
                                           {"logps/rejected", (log_probs * other).sum(), other.sum()}};
  if (objective.rows == ObjectiveRows::kPairs) {
    const auto [chosen, rejected] = chosen_and_rejected(rewards);
    const at::Tensor pairs = at::full({}, static_cast<double>(chosen.numel()), preferred.options());
    metrics.push_back({"rewards/accuracies", (chosen > rejected).to(at::kDouble).sum(), pairs});
    metrics.push_back({"rewards/margins", (chosen - rejected).sum(), pairs});
  }
  return metrics;
}

}  // namespace fsdp::nn
