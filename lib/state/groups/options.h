#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/enum_names.h"
#include "base/util/error.h"
#include "base/util/plugin_values.h"

namespace fsdp::optim {

/// Throws Error(kUsage) with the concatenated `parts` as its message unless `holds`.
template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) fail(ErrorKind::kUsage, parts...);
}

/// Parameters with a learning rate or weight decay of their own.
struct ParameterGroupOptions {
  std::vector<std::string> pattern = {};  ///< patterns of parameter names, with * and ?
  /// Replaces OptimizerOptions::lr; follows the schedule too.
  std::optional<double> lr = std::nullopt;
  std::optional<double> lr_scale = std::nullopt;  ///< factor of OptimizerOptions::lr; excludes `lr`
  std::optional<double> weight_decay = std::nullopt;

  bool operator==(const ParameterGroupOptions&) const = default;
};

/// How muon adjusts the rate to the shape of a matrix. kMatchRmsAdamw makes steps as long as AdamW's.
enum class LrAdjustment { kOriginal, kMatchRmsAdamw };
constexpr auto enum_names(LrAdjustment) {
  return std::to_array<util::EnumName<LrAdjustment>>(
      {{LrAdjustment::kOriginal, "original"}, {LrAdjustment::kMatchRmsAdamw, "match_rms_adamw"}});
}

/// The type in which the optimizer keeps its states between steps. kBFloat16: rounded stochastically. kInt8:
/// codes of blocks (model/kernels/block_codes.h), of large matrices other than embeddings; other states stay
/// in fp32.
enum class StateType { kFloat32, kBFloat16, kInt8 };
constexpr auto enum_names(StateType) {
  return std::to_array<util::EnumName<StateType>>(
      {{StateType::kFloat32, "float32"}, {StateType::kBFloat16, "bfloat16"}, {StateType::kInt8, "int8"}});
}

/// Place of the states between steps, if gradients are computed on a device. kStream: in host memory; the
/// device updates them piece by piece, beside the copies of the pieces before and after.
enum class OptimizerOffload { kNone, kStream };
constexpr auto enum_names(OptimizerOffload) {
  return std::to_array<util::EnumName<OptimizerOffload>>(
      {{OptimizerOffload::kNone, "none"}, {OptimizerOffload::kStream, "stream"}});
}

/// The optimizer and its hyperparameters. Names and defaults are PyTorch's.
struct OptimizerOptions {
  std::string name = "adamw";  ///< one of optimizer_names()
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};  ///< adam, adamw, adamax, lion, lamb, muon's adamw
  /// adam, adamw, adamax, adagrad, adadelta, lamb, muon's adamw. Not given: default_eps(name).
  std::optional<double> eps = std::nullopt;
  double rho = 0.9;        ///< adadelta
  double momentum = 0.0;   ///< sgd, muon
  double dampening = 0.0;  ///< sgd
  bool nesterov = false;   ///< sgd, muon
  /// Not given: default_weight_decay(name).
  std::optional<double> weight_decay = std::nullopt;
  /// Patterns (with * and ?) of parameter names without weight decay; empty: every parameter decays.
  std::vector<std::string> no_decay = {};
  /// muon: patterns of matrices that adamw updates, as well as all other parameters.
  std::vector<std::string> adamw_parameters = {"*embed_tokens*", "*lm_head*", "*wte*", "*wpe*"};
  int64_t ns_steps = 5;                                              ///< muon
  std::vector<double> ns_coefficients = {3.4445, -4.7750, 2.0315};   ///< muon
  util::Named<LrAdjustment> adjust_lr_fn = LrAdjustment::kOriginal;  ///< muon
  bool relative_step = true;    ///< adafactor: the rate is at most 1 / sqrt(step)
  bool scale_parameter = true;  ///< adafactor: the rate is a share of a tensor's rms
  double clip_threshold = 1.0;  ///< adafactor: most rms of a tensor's direction
  double decay_rate = -0.8;     ///< adafactor: exponent of the step in 1 - beta2
  double beta1 = 0.0;           ///< adafactor: decay of an average of steps; 0: none
  /// adafactor: number added to squared gradients, and least rms of a tensor for scale_parameter.
  std::vector<double> adafactor_eps = {1e-30, 1e-3};
  /// Parameter groups. The first group that matches a name applies; no_decay overrides the group's weight
  /// decay.
  std::vector<ParameterGroupOptions> groups = {};
  /// Decay of an exponential moving average of the weights, kept in fp32 and sharded like the weights. 0: no
  /// average.
  double ema_decay = 0.0;
  /// The type of the states. Excludes lamb and adafactor. The average of the weights stays in fp32.
  util::Named<StateType> state_dtype = StateType::kFloat32;
  /// Excludes muon, lamb and adafactor. The average of the weights stays where the weights are.
  util::Named<OptimizerOffload> offload = OptimizerOffload::kNone;
  /// Seed of the stochastic rounding of weights and states that are kept in 16 bits. The training loop uses
  /// run.seed.
  uint64_t rounding_seed = 0;
  bool fused = true;  ///< kernels with one pass over memory; off: the same arithmetic by tensor operations
  util::PluginValues plugin_values = {};
};

/// 0.1 for the usual optimizers of large models (adamw, muon), 0.01 for lamb, 0 for the others (as in
/// torch.optim, lion as in its authors' code).
double default_weight_decay(std::string_view name);

inline double weight_decay_of(const OptimizerOptions& options) {
  return options.weight_decay.value_or(default_weight_decay(options.name));
}

/// The eps of torch.optim: 1e-10 for adagrad, 1e-6 for adadelta and (as in Apex) for lamb, 1e-8 for the
/// others.
double default_eps(std::string_view name);

inline double eps_of(const OptimizerOptions& options) {
  return options.eps.value_or(default_eps(options.name));
}

/// The rule of the outer optimizer. kNesterov: SGD with Nesterov's momentum. kSgd: with plain momentum.
enum class OuterRule { kNesterov, kSgd };
constexpr auto enum_names(OuterRule) {
  return std::to_array<util::EnumName<OuterRule>>(
      {{OuterRule::kNesterov, "nesterov"}, {OuterRule::kSgd, "sgd"}});
}

/// The type in which replicas exchange pseudo-gradients. kInt8, kInt4: codes of
/// blocks (comm/codes/link_codes.h).
enum class ExchangeType { kFloat32, kBFloat16, kInt8, kInt4 };
constexpr auto enum_names(ExchangeType) {
  return std::to_array<util::EnumName<ExchangeType>>({{ExchangeType::kFloat32, "float32"},
                                                      {ExchangeType::kBFloat16, "bfloat16"},
                                                      {ExchangeType::kInt8, "int8"},
                                                      {ExchangeType::kInt4, "int4"}});
}

/// The optimizer that combines replicas after some steps of each (state/outer/outer_optimizer.h). Defaults
/// are those of DiLoCo (Douillard et al. 2023, arXiv 2311.08105) and of Streaming DiLoCo (2025, 2501.18512).
struct OuterOptions {
  util::Named<OuterRule> name = OuterRule::kNesterov;
  double lr = 0.7;
  double momentum = 0.9;
  util::Named<ExchangeType> reduce_dtype = ExchangeType::kFloat32;
  int64_t fragments = 1;       ///< parts of the model that are exchanged at different steps
  int64_t fragment_delay = 0;  ///< steps beside which a fragment is exchanged
  /// Share of a replica's own weights where the result of an exchange meets steps that were done beside it.
  double mixing = 0.5;
};

/// The learning-rate schedule and its numbers (state/groups/learning_rate.h).
struct ScheduleOptions {
  std::string name = "constant";  ///< one of schedule_names()
  int64_t warmup_steps = 0;       ///< linear from 0; step 1 has 1/warmup_steps of the rate
  double warmup_ratio = 0.0;      ///< alternative to warmup_steps: share of all steps, rounded up
  int64_t hold_steps = 0;         ///< tri_stage: steps at the full rate after the warm-up
  /// Length of the decay. wsd: at the end; 0: a tenth of the run. tri_stage: 0: the rest of the run.
  int64_t decay_steps = 0;
  double min_lr_ratio = 0.0;  ///< least rate after the warm-up, as a share of lr
  double power = 1.0;         ///< polynomial
  util::PluginValues plugin_values = {};
};

/// Whether losses are scaled; kAuto: if any gradients are float16.
enum class ScalerChoice { kAuto, kTrue, kFalse };
constexpr auto enum_names(ScalerChoice) {
  return std::to_array<util::EnumName<ScalerChoice>>(
      {{ScalerChoice::kAuto, "auto"}, {ScalerChoice::kTrue, "true"}, {ScalerChoice::kFalse, "false"}});
}

/// Dynamic loss scaling (state/groups/grad_scaler.h).
struct GradScalerOptions {
  util::Named<ScalerChoice> enabled = ScalerChoice::kAuto;
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< good steps in a row after which the scale grows
  double min_scale = 1;            ///< an overflow at this scale means that the training has diverged
};

inline bool uses_grad_scaler(const GradScalerOptions& options, bool float16_in_use) {
  return options.enabled == ScalerChoice::kAuto ? float16_in_use : options.enabled == ScalerChoice::kTrue;
}

}  // namespace fsdp::optim
