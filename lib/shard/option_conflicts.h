#pragma once

// Which of the shard options do not go together. Needs no libtorch, so that a configuration can be checked by
// what does not link the engine.

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "shard/options.h"
#include "shard/strategy.h"
#include "util/error.h"

namespace fsdp::shard {

struct OptionConflict {
  std::vector<std::string> fields;  ///< as in a config, the likeliest culprit first: "fsdp.cpu_offload"
  std::string message;              ///< one sentence: expected, found, why, remedy
};

namespace detail {

using util::concat;

class OptionChecks {
 public:
  explicit OptionChecks(const ShardOptions& options) : options_(options) {}

  std::vector<OptionConflict> run() {
    check_choices();
    check_numbers();
    check_wrapping();
    check_strategy();
    check_layout();
    check_memory_and_prefetch();
    check_mixed_precision();
    return std::move(found_);
  }

 private:
  using Choices = std::initializer_list<const char*>;

  void refuse(std::vector<std::string> fields, std::string message) {
    found_.push_back({std::move(fields), std::move(message)});
  }

  static bool is_one_of(const std::string& value, Choices choices) {
    return std::find(choices.begin(), choices.end(), value) != choices.end();
  }
  static const char* shown(bool value) { return value ? "true" : "false"; }
  /// ["a", "b"]
  static std::string shown(const std::vector<std::string>& list) {
    std::string text;
    for (const std::string& entry : list) text += concat(text.empty() ? "\"" : ", \"", entry, "\"");
    return concat("[", text, "]");
  }

  void check_choice(const char* field, const std::string& value, Choices choices) {
    if (is_one_of(value, choices)) return;
    std::string list;
    for (const char* choice : choices) list += concat(list.empty() ? "" : ", ", choice);
    refuse({field},
           concat(field, ": expected ", choices.size() == 1 ? "" : "one of ", list, "; found \"", value,
                  "\"; set it to ", choices.size() == 1 ? list : std::string("one of these")));
  }

  void check_choices() {
    const MixedPrecisionOptions& mixed = options_.mixed_precision;
    check_choice("mixed_precision.param_dtype", mixed.param_dtype, kTypes);
    check_choice("mixed_precision.reduce_dtype", mixed.reduce_dtype, kTypes);
    check_choice("mixed_precision.buffer_dtype", mixed.buffer_dtype, kTypes);
  }

  void check_numbers() {
    if (options_.min_num_params < 0) {
      refuse({"fsdp.min_num_params"},
             concat("fsdp.min_num_params: expected at least 0, a number of parameters; found ",
                    options_.min_num_params, "; set it to 0 to make a unit of every stage with parameters"));
    }
    if (options_.replica_check_interval < 0) {
      refuse({"fsdp.replica_check_interval"},
             concat("fsdp.replica_check_interval: expected at least 0, a number of steps; found ",
                    options_.replica_check_interval,
                    "; set it to 0 to compare replicas before the first step only"));
    }
    double factor = options_.gradient_predivide_factor;
    if (!std::isfinite(factor) || factor < 0) {
      refuse({"fsdp.gradient_predivide_factor"},
             concat("fsdp.gradient_predivide_factor: expected a finite number of at least 0, because "
                    "gradients are divided by it; found ",
                    factor, "; set it to 0 for the default"));
    }
  }

  void check_wrapping() {
    const auto& wrap = options_.wrap_stages;
    const auto& leaf = options_.leaf_stages;
    bool manual = !options_.units.empty();
    std::string units =
        concat("units names ", options_.units.size(), options_.units.size() == 1 ? " stage" : " stages",
               " that exactly are the units");
    if (manual && options_.wrap_policy) {
      refuse({"units", "wrap_policy"},
             concat("wrap_policy: expected none, because ", units,
                    "; found one, which would never be asked; leave one of the two out"));
    }
    if (manual && !wrap.empty()) {
      refuse({"units", "fsdp.wrap_stages"}, concat("fsdp.wrap_stages: expected [], because ", units,
                                                   "; found ", shown(wrap), "; leave one of the two out"));
    }
    if (manual && !leaf.empty()) {
      refuse({"units", "fsdp.leaf_stages"}, concat("fsdp.leaf_stages: expected [], because ", units,
                                                   "; found ", shown(leaf), "; leave one of the two out"));
    }
    if (options_.wrap_policy && !wrap.empty() && !manual) {
      refuse({"wrap_policy", "fsdp.wrap_stages"},
             concat("fsdp.wrap_stages: expected [], because wrap_policy decides in its place; found ",
                    shown(wrap), "; join the two with any_of and stage_type_policy"));
    }
    for (const std::string& type : wrap) {
      const auto& exclude = options_.exclude_stages;
      if (std::find(exclude.begin(), exclude.end(), type) == exclude.end()) continue;
      refuse({"fsdp.wrap_stages", "fsdp.exclude_stages"},
             concat("fsdp.wrap_stages: expected no type that fsdp.exclude_stages = ", shown(exclude),
                    " keeps from being a unit; found \"", type, "\" in both; take it out of one of the two"));
    }
  }

  /// The options that only full_shard has a use for, and those that no_shard has none for.
  void check_strategy() {
    if (!reshards(options_.strategy) || !options_.reshard_after_forward) check_no_resharding();
    check_replicas();
    const auto& kept = options_.keep_after_forward;
    if (options_.reshard_root_after_forward && std::find(kept.begin(), kept.end(), "root") != kept.end()) {
      refuse({"fsdp.keep_after_forward", "fsdp.reshard_root_after_forward"},
             concat("fsdp.keep_after_forward: expected no \"root\", because "
                    "fsdp.reshard_root_after_forward = true frees it; found ",
                    shown(kept), "; take \"root\" out or set fsdp.reshard_root_after_forward = false"));
    }
    if (!shards_nothing(options_.strategy)) return;
    const std::string why = "because with fsdp.strategy = no_shard every rank holds every parameter";
    if (options_.forward_prefetch == ForwardPrefetch::kExplicit) {
      refuse({"fsdp.forward_prefetch", "fsdp.strategy"},
             concat("fsdp.forward_prefetch: expected none or implicit, ", why,
                    " and no unit is gathered; found \"explicit\"; leave it out or change fsdp.strategy"));
    }
    if (!options_.limit_all_gathers) {
      refuse({"fsdp.limit_all_gathers", "fsdp.strategy"},
             concat("fsdp.limit_all_gathers: expected true, ", why,
                    " and there is no all-gather; found false; leave it out or change fsdp.strategy"));
    }
    if (!options_.replicated_parameters.empty()) {
      refuse({"fsdp.replicated_parameters", "fsdp.strategy"},
             concat("fsdp.replicated_parameters: expected [], ", why, " already; found ",
                    shown(options_.replicated_parameters), "; leave it out or change fsdp.strategy"));
    }
  }

  /// What only the per_parameter layout has a use for.
  void check_layout() {
    if (options_.layout != Layout::kFlat) return;
    const char* why =
        ", because with fsdp.layout = flat a unit is cut as one, wherever the cuts fall in its parameters; "
        "found ";
    const char* remedy = "; leave it out or set fsdp.layout = per_parameter";
    if (options_.shard_dimension == ShardDimension::kFirst) {
      refuse({"fsdp.shard_dimension", "fsdp.layout"},
             concat("fsdp.shard_dimension: expected largest, the default", why, "\"first\"", remedy));
    }
    if (options_.shard_1d_parameters) {
      refuse({"fsdp.shard_1d_parameters", "fsdp.layout"},
             concat("fsdp.shard_1d_parameters: expected false", why, "true", remedy));
    }
    if (options_.dimension_policy) {
      refuse({"dimension_policy", "fsdp.layout"},
             concat("dimension_policy: expected none", why, "one", remedy));
    }
  }

  void check_replicas() {
    bool replicates = is_hybrid(options_.strategy) || shards_nothing(options_.strategy) ||
                      !options_.replicated_parameters.empty() ||
                      (options_.layout == Layout::kPerParameter && !options_.shard_1d_parameters);
    if (replicates || options_.replica_check_interval <= 0) return;
    refuse({"fsdp.replica_check_interval", "fsdp.strategy"},
           concat("fsdp.replica_check_interval: expected 0, because with fsdp.strategy = ", options_.strategy,
                  " no parameter is on two ranks; found ", options_.replica_check_interval,
                  "; leave it out or set fsdp.strategy = hybrid_shard"));
  }

  void check_no_resharding() {
    std::vector<std::string> causes;
    if (!reshards(options_.strategy)) causes.push_back("fsdp.strategy");
    if (!options_.reshard_after_forward) causes.push_back("fsdp.reshard_after_forward");
    std::string found = concat("fsdp.strategy = ", options_.strategy,
                               " and fsdp.reshard_after_forward = ", shown(options_.reshard_after_forward));
    auto refuse_without = [&](const char* field, const std::string& expected, const std::string& value) {
      std::vector<std::string> fields = {field};
      fields.insert(fields.end(), causes.begin(), causes.end());
      refuse(std::move(fields), concat(field, ": expected ", expected, ", because with ", found,
                                       " every unit stays gathered from forward to backward; found ", value,
                                       "; leave it out or set fsdp.strategy = ",
                                       is_hybrid(options_.strategy) ? "hybrid_shard" : "full_shard",
                                       " and fsdp.reshard_after_forward = true"));
    };
    if (options_.reshard_root_after_forward) {
      refuse_without("fsdp.reshard_root_after_forward", "false", "true");
    }
    if (options_.reshard_last_after_forward) {
      refuse_without("fsdp.reshard_last_after_forward", "false", "true");
    }
    if (!options_.keep_after_forward.empty()) {
      refuse_without("fsdp.keep_after_forward", "[]", shown(options_.keep_after_forward));
    }
  }

  void check_memory_and_prefetch() {
    if (options_.move_grads_to_cpu && !options_.cpu_offload) {
      refuse({"fsdp.move_grads_to_cpu", "fsdp.cpu_offload"},
             "fsdp.move_grads_to_cpu: expected false, because with fsdp.cpu_offload = false the optimizer, "
             "which reads the gradients, is not in host memory; found true; set fsdp.cpu_offload = true or "
             "leave it out");
    }
    if (!options_.limit_all_gathers && options_.forward_prefetch == ForwardPrefetch::kNone) {
      refuse({"fsdp.limit_all_gathers", "fsdp.forward_prefetch"},
             "fsdp.limit_all_gathers: expected true, because with fsdp.forward_prefetch = none no unit is "
             "gathered ahead and there is nothing to limit; found false; leave it out or set "
             "fsdp.forward_prefetch to implicit or explicit");
    }
  }

  void check_mixed_precision() {
    const MixedPrecisionOptions& mixed = options_.mixed_precision;
    if (mixed.keep_low_precision_grads && mixed.reduce_dtype == "float32") {
      refuse({"mixed_precision.keep_low_precision_grads", "mixed_precision.reduce_dtype"},
             "mixed_precision.keep_low_precision_grads: expected false, because with "
             "mixed_precision.reduce_dtype = float32 gradients have full precision; found true; leave it out "
             "or set mixed_precision.reduce_dtype to bfloat16 or float16");
    }
    if (!mixed.keep_float32.empty() && mixed.param_dtype == "float32" && mixed.reduce_dtype == "float32") {
      refuse({"mixed_precision.keep_float32", "mixed_precision.param_dtype", "mixed_precision.reduce_dtype"},
             concat("mixed_precision.keep_float32: expected [], because with mixed_precision.param_dtype = "
                    "float32 and mixed_precision.reduce_dtype = float32 every parameter is kept so; found ",
                    shown(mixed.keep_float32), "; leave it out or set one of the two to bfloat16"));
    }
    if (are_different_and_low(mixed.param_dtype, mixed.reduce_dtype)) {
      refuse({"mixed_precision.reduce_dtype", "mixed_precision.param_dtype"},
             concat("mixed_precision.reduce_dtype: expected float32 or mixed_precision.param_dtype = ",
                    mixed.param_dtype,
                    ", because neither of bfloat16 and float16 holds every value of the "
                    "other; found ",
                    mixed.reduce_dtype, "; set it to one of these"));
    }
    if (are_different_and_low(mixed.param_dtype, mixed.buffer_dtype)) {
      refuse({"mixed_precision.buffer_dtype", "mixed_precision.param_dtype"},
             concat("mixed_precision.buffer_dtype: expected float32 or mixed_precision.param_dtype = ",
                    mixed.param_dtype,
                    ", because bfloat16 and float16 promote to float32, and the next "
                    "matrix product would get two types; found ",
                    mixed.buffer_dtype, "; set it to one of these"));
    }
  }

  static bool are_different_and_low(const std::string& a, const std::string& b) {
    return a != b && is_one_of(a, {"bfloat16", "float16"}) && is_one_of(b, {"bfloat16", "float16"});
  }

  static constexpr Choices kTypes = {"float32", "bfloat16", "float16"};

  const ShardOptions& options_;
  std::vector<OptionConflict> found_;
};

}  // namespace detail

/// Every conflict among the options, single values out of range included; empty: they go together. What only
/// the model can tell (stage types, names) is checked by plan_units().
inline std::vector<OptionConflict> find_option_conflicts(const ShardOptions& options) {
  return detail::OptionChecks(options).run();
}

/// Throws Error(kUsage) with the messages of all conflicts, if there are any.
inline void require_no_option_conflicts(const ShardOptions& options) {
  std::string text;
  for (const OptionConflict& conflict : find_option_conflicts(options)) {
    text += util::concat(text.empty() ? "" : "\n", conflict.message);
  }
  if (!text.empty()) util::fail(util::ErrorKind::kUsage, text);
}

}  // namespace fsdp::shard
