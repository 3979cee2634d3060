#include "shard/units/option_conflicts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/util/error.h"

namespace fsdp::shard {
namespace {

using Texts = std::vector<std::string>;

bool is_one_of(const std::string& value, const Texts& choices) {
  return std::find(choices.begin(), choices.end(), value) != choices.end();
}

using util::FloatType;
bool are_different_and_low(util::Named<FloatType> a, util::Named<FloatType> b) {
  return a != b && a != FloatType::kFloat32 && b != FloatType::kFloat32;
}

const char* shown(bool value) { return value ? "true" : "false"; }
/// ["a", "b"]
std::string shown(const Texts& list) {
  std::string text;
  for (const std::string& entry : list) text += concat(text.empty() ? "\"" : ", \"", entry, "\"");
  return concat("[", text, "]");
}

/// Whether the options of some wrapped module are such.
template <typename Predicate>
bool any_wrapped(const ShardOptions& options, const Predicate& is_such) {
  return std::any_of(options.wrapped.begin(), options.wrapped.end(),
                     [&](const WrappedModule& wrapped) { return is_such(wrapped.options); });
}

class OptionChecks {
 public:
  explicit OptionChecks(const ShardOptions& options) : options_(options), mixed_(options.mixed_precision) {}

  std::vector<OptionConflict> run() {
    check_values();
    check_wrapping();
    const bool some_reshard = any_wrapped(options_, [&](const UnitOverrides& own) {
      return reshards(own.strategy.value_or(options_.strategy)) &&
             own.reshard_after_forward.value_or(options_.reshard_after_forward);
    });
    const bool reshard_by_default = reshards(options_.strategy) && options_.reshard_after_forward;
    if (!reshard_by_default && !some_reshard) check_without_resharding();
    check_strategy();
    if (options_.layout == Layout::kFlat) check_flat_layout();
    check_memory_and_prefetch();
    check_mixed_precision();
    check_links();
    return std::move(found_);
  }

 private:
  /// If `wrong`, adds "<field> must be <expected>, but is <found>; <remedy>", where `field` is the first of
  /// `fields` unless it is given.
  void refuse_if(bool wrong, Texts fields, const std::string& expected, const std::string& found,
                 const std::string& remedy, std::string field = "") {
    if (!wrong) return;
    if (field.empty()) field = fields.front();
    found_.push_back(
        {std::move(fields), concat(field, " must be ", expected, ", but is ", found, "; ", remedy)});
  }

  void check_values() {
    refuse_if(options_.min_num_params < 0, {"fsdp.min_num_params"}, "at least 0",
              concat(options_.min_num_params), "set it to 0 to make a unit of every stage with parameters");
    refuse_if(options_.replica_check_interval < 0, {"fsdp.replica_check_interval"}, "at least 0",
              concat(options_.replica_check_interval),
              "set it to 0 to compare replicas before the first step only");
    const double factor = options_.gradient_predivide_factor;
    refuse_if(!std::isfinite(factor) || factor < 0, {"fsdp.gradient_predivide_factor"},
              "finite and at least 0, because gradients are divided by it", concat(factor),
              "set it to 0 for the default");
  }

  void check_wrapping() {
    const Texts &wrap = options_.wrap_stages, &leaf = options_.leaf_stages,
                &exclude = options_.exclude_stages;
    const bool manual = !options_.units.empty(), has_policy = static_cast<bool>(options_.wrap_policy);
    const std::string why =
        concat(", because units lists all units except the root (", options_.units.size(), ")");
    const char* remedy = "leave one of the two out";
    refuse_if(manual && has_policy, {"units", "wrap_policy"}, "empty" + why, "given", remedy, "wrap_policy");
    refuse_if(manual && !wrap.empty(), {"units", "fsdp.wrap_stages"}, "[]" + why, shown(wrap), remedy,
              "fsdp.wrap_stages");
    refuse_if(manual && !leaf.empty(), {"units", "fsdp.leaf_stages"}, "[]" + why, shown(leaf), remedy,
              "fsdp.leaf_stages");
    refuse_if(!manual && has_policy && !wrap.empty(), {"wrap_policy", "fsdp.wrap_stages"},
              "[], because wrap_policy replaces it", shown(wrap),
              "combine the two with any_of and stage_type_policy", "fsdp.wrap_stages");
    for (const std::string& type : wrap) {
      refuse_if(is_one_of(type, exclude), {"fsdp.wrap_stages", "fsdp.exclude_stages"},
                concat("disjoint from fsdp.exclude_stages = ", shown(exclude)), shown(wrap),
                concat("take \"", type, "\" out of one of the two"));
    }
  }

  void check_without_resharding() {
    Texts fields = {""};
    if (!reshards(options_.strategy)) fields.emplace_back("fsdp.strategy");
    if (!options_.reshard_after_forward) fields.emplace_back("fsdp.reshard_after_forward");
    const auto refuse_unused = [&](bool used, const char* field, const char* expected,
                                   const std::string& found) {
      fields.front() = field;
      refuse_if(used, fields,
                concat(expected, ", because with fsdp.strategy = ", options_.strategy,
                       " and fsdp.reshard_after_forward = ", shown(options_.reshard_after_forward),
                       " every unit stays gathered from forward to backward"),
                found,
                concat("leave it out or set fsdp.strategy = ",
                       is_hybrid(options_.strategy) ? "hybrid_shard" : "full_shard",
                       " and fsdp.reshard_after_forward = true"));
    };
    refuse_unused(options_.reshard_root_after_forward, "fsdp.reshard_root_after_forward", "false", "true");
    refuse_unused(options_.reshard_last_after_forward, "fsdp.reshard_last_after_forward", "false", "true");
    refuse_unused(!options_.keep_after_forward.empty(), "fsdp.keep_after_forward", "[]",
                  shown(options_.keep_after_forward));
  }

  void check_strategy() {
    const bool is_global = options_.hybrid_optimizer == HybridOptimizer::kGlobal;
    const auto has_replicas = [is_global](util::Named<Strategy> strategy) {
      return (is_hybrid(strategy) && !is_global) || shards_nothing(strategy);
    };
    const bool some_hybrid =
        is_hybrid(options_.strategy) || any_wrapped(options_, [](const UnitOverrides& own) {
          return own.strategy && is_hybrid(*own.strategy);
        });
    refuse_if(is_global && !some_hybrid, {"fsdp.hybrid_optimizer", "fsdp.strategy"},
              concat("replicated, because with fsdp.strategy = ", options_.strategy,
                     " no part of a unit is replicated over slices"),
              "global", "leave it out or set fsdp.strategy to hybrid_shard or hybrid_shard_zero2");
    const bool replicates =
        has_replicas(options_.strategy) || !options_.replicated_parameters.empty() ||
        any_wrapped(options_,
                    [&](const UnitOverrides& own) { return own.strategy && has_replicas(*own.strategy); }) ||
        (options_.layout == Layout::kPerParameter && !options_.shard_1d_parameters);
    refuse_if(!replicates && options_.replica_check_interval > 0,
              {"fsdp.replica_check_interval", "fsdp.strategy"},
              concat("0, because with fsdp.strategy = ", options_.strategy,
                     is_global ? " and fsdp.hybrid_optimizer = global" : "",
                     " every parameter is on one rank only"),
              concat(options_.replica_check_interval),
              is_global ? "leave it out or set fsdp.hybrid_optimizer = replicated"
                        : "leave it out or set fsdp.strategy = hybrid_shard");
    refuse_if(options_.reshard_root_after_forward && is_one_of("root", options_.keep_after_forward),
              {"fsdp.keep_after_forward", "fsdp.reshard_root_after_forward"},
              "without \"root\", because fsdp.reshard_root_after_forward = true frees that unit",
              shown(options_.keep_after_forward),
              "take \"root\" out or set fsdp.reshard_root_after_forward = false");

    const bool whole =
        shards_nothing(options_.strategy) && !any_wrapped(options_, [](const UnitOverrides& own) {
          return own.strategy && !shards_nothing(*own.strategy);
        });
    const std::string why = ", because with fsdp.strategy = no_shard every rank holds every parameter";
    const char* remedy = "leave it out or change fsdp.strategy";
    refuse_if(whole && options_.forward_prefetch == ForwardPrefetch::kExplicit,
              {"fsdp.forward_prefetch", "fsdp.strategy"},
              concat("none or implicit", why, " and no unit is gathered"), "\"explicit\"", remedy);
    refuse_if(whole && !options_.limit_all_gathers, {"fsdp.limit_all_gathers", "fsdp.strategy"},
              concat("true", why, " and there is no all-gather"), "false", remedy);
    refuse_if(whole && options_.reduce_scatter_group, {"fsdp.reduce_scatter_group", "fsdp.strategy"},
              concat("false", why, " and there is no reduce-scatter"), "true", remedy);
    refuse_if(whole && !options_.replicated_parameters.empty(),
              {"fsdp.replicated_parameters", "fsdp.strategy"}, concat("[]", why, " already"),
              shown(options_.replicated_parameters), remedy);
  }

  void check_flat_layout() {
    const std::string why =
        ", because with fsdp.layout = flat a unit is cut as a whole, regardless of its parameters";
    const char* remedy = "leave it out or set fsdp.layout = per_parameter";
    refuse_if(options_.shard_dimension == ShardDimension::kFirst, {"fsdp.shard_dimension", "fsdp.layout"},
              "largest, the default" + why, "\"first\"", remedy);
    refuse_if(options_.shard_1d_parameters, {"fsdp.shard_1d_parameters", "fsdp.layout"}, "false" + why,
              "true", remedy);
    refuse_if(static_cast<bool>(options_.dimension_policy), {"dimension_policy", "fsdp.layout"},
              "empty" + why, "given", remedy);
  }

  void check_memory_and_prefetch() {
    refuse_if(
        options_.move_grads_to_cpu && !options_.cpu_offload, {"fsdp.move_grads_to_cpu", "fsdp.cpu_offload"},
        "false, because with fsdp.cpu_offload = false the optimizer, which reads the gradients, is not in "
        "host memory",
        "true", "set fsdp.cpu_offload = true or leave it out");
    refuse_if(
        !options_.limit_all_gathers && options_.forward_prefetch == ForwardPrefetch::kNone,
        {"fsdp.limit_all_gathers", "fsdp.forward_prefetch"},
        "true, because with fsdp.forward_prefetch = none no unit is gathered ahead and there is nothing "
        "to limit",
        "false", "leave it out or set fsdp.forward_prefetch to implicit or explicit");
  }

  void check_mixed_precision() {
    refuse_if(mixed_.keep_low_precision_grads && mixed_.reduce_dtype == FloatType::kFloat32,
              {"mixed_precision.keep_low_precision_grads", "mixed_precision.reduce_dtype"},
              "false, because with mixed_precision.reduce_dtype = float32 gradients have full precision",
              "true", "leave it out or set mixed_precision.reduce_dtype to bfloat16 or float16");
    refuse_if(
        !mixed_.keep_float32.empty() && !any_unit_is_mixed(options_),
        {"mixed_precision.keep_float32", "mixed_precision.param_dtype", "mixed_precision.reduce_dtype",
         "fsdp.param_storage"},
        "[], because with mixed_precision.param_dtype = float32, mixed_precision.reduce_dtype = float32, "
        "fsdp.param_storage = float32 and exact collectives every parameter is float32",
        shown(mixed_.keep_float32), "leave it out or set one of the three to bfloat16");
    refuse_if(are_different_and_low(mixed_.param_dtype, options_.param_storage),
              {"fsdp.param_storage", "mixed_precision.param_dtype"},
              concat("float32 or mixed_precision.param_dtype = ", mixed_.param_dtype,
                     ", because neither of bfloat16 and float16 holds every value of the other"),
              options_.param_storage.name(), "set it to one of these");
    const std::string expected = concat("float32 or mixed_precision.param_dtype = ", mixed_.param_dtype);
    refuse_if(are_different_and_low(mixed_.param_dtype, mixed_.reduce_dtype),
              {"mixed_precision.reduce_dtype", "mixed_precision.param_dtype"},
              expected + ", because neither of bfloat16 and float16 holds every value of the other",
              mixed_.reduce_dtype.name(), "set it to one of these");
    const auto buffers = float_type_of(mixed_.buffer_dtype);
    refuse_if(buffers && are_different_and_low(mixed_.param_dtype, *buffers),
              {"mixed_precision.buffer_dtype", "mixed_precision.param_dtype"},
              expected +
                  ", because bfloat16 and float16 together promote to float32, and the operands of the "
                  "next matrix product would differ in type",
              mixed_.buffer_dtype.name(), "set it to one of these");
  }

  void check_links() {
    const bool is_whole = shards_nothing(options_.strategy) && !any_wrapped(options_, [](const auto& own) {
                            return own.strategy && !shards_nothing(*own.strategy);
                          });
    refuse_if(is_whole && options_.gather_dtype != comm::LinkType::kExact,
              {"fsdp.gather_dtype", "fsdp.strategy"},
              "exact, because with fsdp.strategy = no_shard no parameter is gathered",
              options_.gather_dtype.name(), "leave it out or change fsdp.strategy");
    refuse_if(
        !codes_links(options_) && options_.quantize_links == comm::CodedLinks::kAll,
        {"fsdp.quantize_links", "fsdp.gather_dtype", "fsdp.reduce_dtype"},
        "between_hosts, the default, because with fsdp.gather_dtype = exact and fsdp.reduce_dtype = exact "
        "nothing is quantized",
        "\"all\"", "leave it out or set one of the two to int8");
    refuse_if(options_.error_feedback && options_.reduce_dtype == comm::LinkType::kExact,
              {"fsdp.error_feedback", "fsdp.reduce_dtype"},
              "false, because with fsdp.reduce_dtype = exact reductions lack nothing", "true",
              "leave it out or set fsdp.reduce_dtype to int8 or int4");
    const char* why =
        "exact with training.reproducible = \"world_size\", because the blocks of a code depend on the number of "
        "ranks";
    refuse_if(options_.sums_by_sample && options_.gather_dtype != comm::LinkType::kExact,
              {"fsdp.gather_dtype", "training.reproducible"}, why, options_.gather_dtype.name(),
              "leave one of the two out");
    refuse_if(options_.sums_by_sample && options_.reduce_dtype != comm::LinkType::kExact,
              {"fsdp.reduce_dtype", "training.reproducible"}, why, options_.reduce_dtype.name(),
              "leave one of the two out");
  }

  const ShardOptions& options_;
  const MixedPrecisionOptions& mixed_;
  std::vector<OptionConflict> found_;
};

}  // namespace

bool codes_links(const ShardOptions& options) {
  return options.gather_dtype != comm::LinkType::kExact || options.reduce_dtype != comm::LinkType::kExact;
}

bool any_unit_is_mixed(const ShardOptions& options) {
  const auto is_low = [](util::Named<FloatType> type) { return type != FloatType::kFloat32; };
  const MixedPrecisionOptions& mixed = options.mixed_precision;
  return codes_links(options) || is_low(mixed.param_dtype) || is_low(mixed.reduce_dtype) ||
         is_low(options.param_storage) || any_wrapped(options, [&](const UnitOverrides& own) {
           return (own.param_dtype && is_low(*own.param_dtype)) ||
                  (own.reduce_dtype && is_low(*own.reduce_dtype)) ||
                  (own.param_storage && is_low(*own.param_storage));
         });
}

std::vector<OptionConflict> find_option_conflicts(const ShardOptions& options) {
  return OptionChecks(options).run();
}

void require_no_option_conflicts(const ShardOptions& options) {
  std::string text;
  for (const OptionConflict& conflict : find_option_conflicts(options)) {
    text += concat(text.empty() ? "" : "\n", conflict.message);
  }
  if (!text.empty()) fail(ErrorKind::kUsage, text);
}

}  // namespace fsdp::shard
