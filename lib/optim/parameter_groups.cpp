#include "optim/parameter_groups.h"

#include "util/name_patterns.h"

namespace fsdp::optim {

Treatment treatment_of(const OptimizerOptions& options, const std::string& name,
                       const std::vector<int64_t>& shape) {
  Treatment treatment{.decay = !util::matches_any(name, options.no_decay)};
  for (size_t i = 0; i < options.groups.size() && treatment.group == 0; ++i) {
    if (util::matches_any(name, options.groups[i].pattern)) treatment.group = i + 1;
  }
  treatment.matrix =
      options.name == "muon" && shape.size() == 2 && !util::matches_any(name, options.adamw_parameters);
  return treatment;
}

double lr_of(const OptimizerOptions& options, const Treatment& treatment, double lr) {
  if (treatment.group == 0) return lr;
  const ParameterGroupOptions& group = options.groups[treatment.group - 1];
  // The schedule gives shares of options.lr.
  if (group.lr) return options.lr == 0 ? 0 : lr * (*group.lr / options.lr);
  return lr * group.lr_scale.value_or(1);
}

double weight_decay_of(const OptimizerOptions& options, const Treatment& treatment) {
  if (!treatment.decay) return 0;
  const double of_all = weight_decay_of(options);
  return treatment.group == 0 ? of_all : options.groups[treatment.group - 1].weight_decay.value_or(of_all);
}

namespace {

std::vector<StateKind> of_adam(const OptimizerOptions&) { return {{"exp_avg"}, {"exp_avg_sq"}}; }

std::vector<StateKind> of_lion(const OptimizerOptions&) { return {{"exp_avg"}}; }

std::vector<StateKind> of_sgd(const OptimizerOptions& options) {
  if (options.momentum == 0) return {};
  return {{"momentum_buffer"}};
}

std::vector<StateKind> of_muon(const OptimizerOptions&) {
  using Elements = StateKind::Elements;
  return {{"momentum_buffer", Elements::kMatrices},
          {"exp_avg", Elements::kOthers},
          {"exp_avg_sq", Elements::kOthers}};
}

struct NamedOptimizer {
  const char* name;
  std::vector<StateKind> (*own_states)(const OptimizerOptions&);
};
constexpr NamedOptimizer kOptimizers[] = {
    {"adamw", of_adam}, {"adam", of_adam}, {"sgd", of_sgd}, {"lion", of_lion}, {"muon", of_muon}};

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const NamedOptimizer& optimizer : kOptimizers) names.emplace_back(optimizer.name);
  return names;
}

std::vector<StateKind> state_kinds(const OptimizerOptions& options) {
  std::vector<StateKind> kinds;
  for (const NamedOptimizer& optimizer : kOptimizers) {
    if (options.name == optimizer.name) kinds = optimizer.own_states(options);
  }
  if (options.ema_decay > 0) kinds.push_back({kEmaState});
  return kinds;
}

}  // namespace fsdp::optim
