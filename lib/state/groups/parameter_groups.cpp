#include "state/groups/parameter_groups.h"

#include <functional>
#include <numeric>

#include "base/util/text.h"

namespace fsdp::optim {
namespace {

/// Fewest elements of a tensor whose states are kept in 8 bits, bitsandbytes' number.
constexpr int64_t kLeastIn8Bits = 4096;

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// Rows of embeddings get gradients of very different sizes, as seldom as their tokens occur.
bool is_embedding(const std::string& name) {
  static const std::vector<std::string> names = {"*embed_tokens*", "*embed_in*", "*wte*", "*wpe*"};
  return util::matches_any(name, names);
}

}  // namespace

Treatment treatment_of(const OptimizerOptions& options, const std::string& name,
                       const std::vector<int64_t>& shape) {
  Treatment treatment{.decay = !util::matches_any(name, options.no_decay)};
  for (size_t i = 0; i < options.groups.size() && treatment.group == 0; ++i) {
    if (util::matches_any(name, options.groups[i].pattern)) treatment.group = i + 1;
  }
  treatment.matrix =
      options.name == "muon" && shape.size() == 2 && !util::matches_any(name, options.adamw_parameters);
  treatment.factored = options.name == "adafactor" && shape.size() == 2;
  treatment.in_8_bits = options.state_dtype == StateType::kInt8 && shape.size() >= 2 &&
                        numel_of(shape) >= kLeastIn8Bits && !is_embedding(name);
  return treatment;
}

bool StateKind::covers(const Treatment& treatment) const {
  if (is_whole()) return treatment.factored;
  return elements == Elements::kAll ||
         (elements == Elements::kMatrices) == (treatment.matrix || treatment.factored);
}

int64_t StateKind::numel(const std::vector<int64_t>& shape) const {
  if (is_whole()) return shape.at(elements == Elements::kRows ? 0 : 1);
  return numel_of(shape);
}

StateType StateKind::type_of(const Treatment& treatment) const {
  return type == StateType::kInt8 && !treatment.in_8_bits ? StateType::kFloat32 : type;
}

int64_t StateKind::bytes(const Treatment& treatment, int64_t n) const {
  switch (type_of(treatment)) {
    case StateType::kFloat32:
      return 4 * n;
    case StateType::kBFloat16:
      return 2 * n;
    case StateType::kInt8:
      return n + 4 * ((n + kStateBlock - 1) / kStateBlock);
  }
  return 0;
}

double lr_of(const OptimizerOptions& options, const Treatment& treatment, double lr) {
  if (treatment.group == 0) return lr;
  const ParameterGroupOptions& group = options.groups[treatment.group - 1];
  // The schedule has already scaled `lr`, so the group's rate gets the same share.
  if (group.lr) return options.lr == 0 ? 0 : lr * (*group.lr / options.lr);
  return lr * group.lr_scale.value_or(1);
}

double weight_decay_of(const OptimizerOptions& options, const Treatment& treatment) {
  if (!treatment.decay) return 0;
  const double of_all = weight_decay_of(options);
  return treatment.group == 0 ? of_all : options.groups[treatment.group - 1].weight_decay.value_or(of_all);
}

namespace {

/// A state of numbers that are never negative.
StateKind squares(const char* name, StateKind::Elements elements = StateKind::Elements::kAll) {
  return {.name = name, .elements = elements, .is_signed = false};
}

std::vector<StateKind> of_adam(const OptimizerOptions&) { return {{"exp_avg"}, squares("exp_avg_sq")}; }

std::vector<StateKind> of_adamax(const OptimizerOptions&) { return {{"exp_avg"}, squares("exp_inf")}; }

std::vector<StateKind> of_adagrad(const OptimizerOptions&) { return {squares("sum")}; }

std::vector<StateKind> of_adadelta(const OptimizerOptions&) {
  return {squares("square_avg"), squares("acc_delta")};
}

std::vector<StateKind> of_lion(const OptimizerOptions&) { return {{"exp_avg"}}; }

std::vector<StateKind> of_sgd(const OptimizerOptions& options) {
  return options.momentum == 0 ? std::vector<StateKind>{} : std::vector<StateKind>{{"momentum_buffer"}};
}

std::vector<StateKind> of_muon(const OptimizerOptions&) {
  using Elements = StateKind::Elements;
  return {{"momentum_buffer", Elements::kMatrices},
          {"exp_avg", Elements::kOthers},
          squares("exp_avg_sq", Elements::kOthers)};
}

std::vector<StateKind> of_adafactor(const OptimizerOptions& options) {
  using Elements = StateKind::Elements;
  std::vector<StateKind> states = {{"exp_avg_sq_row", Elements::kRows},
                                   {"exp_avg_sq_col", Elements::kColumns},
                                   {"exp_avg_sq", Elements::kOthers}};
  if (options.beta1 != 0) states.push_back({"exp_avg"});
  return states;
}

}  // namespace

util::Registry<OptimizerTraits>& optimizer_traits() {
  using Keys = std::vector<std::string>;
  constexpr bool kTogether = false;  // other ranks hold parts of the tensors
  static util::Registry<OptimizerTraits> traits(
      "optimizer",
      {{"adamw", {of_adam, 0.1, Keys{"betas", "eps", "state_dtype", "offload"}}},
       {"adam", {of_adam, 0, Keys{"betas", "eps", "state_dtype", "offload"}}},
       {"adamax", {of_adamax, 0, Keys{"betas", "eps", "state_dtype", "offload"}}},
       {"adagrad", {of_adagrad, 0, Keys{"eps", "state_dtype", "offload"}, 1e-10}},
       {"adadelta", {of_adadelta, 0, Keys{"rho", "eps", "state_dtype", "offload"}, 1e-6}},
       {"sgd", {of_sgd, 0, Keys{"momentum", "dampening", "nesterov", "state_dtype", "offload"}}},
       {"lion", {of_lion, 0, Keys{"betas", "state_dtype", "offload"}}},
       {"lamb", {of_adam, 0.01, Keys{"betas", "eps"}, 1e-6, kTogether}},
       {"adafactor",
        {of_adafactor, 0,
         Keys{"relative_step", "scale_parameter", "clip_threshold", "decay_rate", "beta1", "adafactor_eps"},
         1e-8, kTogether}},
       {"muon",
        {of_muon, 0.1,
         Keys{"betas", "eps", "momentum", "nesterov", "adamw_parameters", "ns_steps", "ns_coefficients",
              "adjust_lr_fn", "state_dtype"},
         1e-8, kTogether}}});
  return traits;
}

std::vector<std::string> optimizer_names() { return optimizer_traits().names(); }

double default_weight_decay(std::string_view name) {
  const OptimizerTraits* traits = optimizer_traits().find(name);
  return traits == nullptr ? 0.1 : traits->default_weight_decay;
}

double default_eps(std::string_view name) {
  const OptimizerTraits* traits = optimizer_traits().find(name);
  return traits == nullptr ? OptimizerTraits{}.default_eps : traits->default_eps;
}

std::vector<int64_t> sums_of_tensors(const OptimizerOptions& options,
                                     const std::vector<std::vector<int64_t>>& shapes) {
  const auto tensors = static_cast<int64_t>(shapes.size());
  if (tensors == 0) return {};
  if (options.name == "lamb") return {2 * tensors};
  if (options.name != "adafactor") return {};
  int64_t first = tensors;
  for (const std::vector<int64_t>& shape : shapes) {
    if (treatment_of(options, "", shape).factored) first += shape[0] + shape[1];
  }
  return {first, tensors};
}

std::vector<StateKind> state_kinds(const OptimizerOptions& options) {
  std::vector<StateKind> kinds;
  const OptimizerTraits* traits = optimizer_traits().find(options.name);
  if (traits != nullptr && traits->states != nullptr) kinds = traits->states(options);
  const StateType type = options.state_dtype.value();
  for (StateKind& kind : kinds) kind.type = type;
  if (options.ema_decay > 0) kinds.push_back({kEmaState});
  return kinds;
}

}  // namespace fsdp::optim
