#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "util/enum_names.h"

namespace fsdp::nn {
class Hookable;
}

namespace fsdp::shard {

/// What is sharded, over which ranks (group_sizes.h).
enum class Strategy {
  kFullShard,         ///< ZeRO-3
  kShardGradOp,       ///< ZeRO-2: parameters stay gathered from forward to backward
  kHybridShard,       ///< ZeRO-3 within a slice (mesh axis data), a replica in each slice (dcn)
  kHybridShardZero2,  ///< the same with ZeRO-2
  kNoShard,           ///< every rank holds everything; gradients are all-reduced, as DDP does
};
constexpr auto enum_names(Strategy) {
  return std::to_array<util::EnumName<Strategy>>({{Strategy::kFullShard, "full_shard"},
                                                  {Strategy::kShardGradOp, "shard_grad_op"},
                                                  {Strategy::kHybridShard, "hybrid_shard"},
                                                  {Strategy::kHybridShardZero2, "hybrid_shard_zero2"},
                                                  {Strategy::kNoShard, "no_shard"}});
}

/// How a unit is cut into shards (unit_layout.h).
enum class Layout {
  kFlat,          ///< all its parameters as one, evenly
  kPerParameter,  ///< each parameter on one dimension
};
constexpr auto enum_names(Layout) {
  return std::to_array<util::EnumName<Layout>>(
      {{Layout::kFlat, "flat"}, {Layout::kPerParameter, "per_parameter"}});
}

/// Of a parameter, with Layout::kPerParameter.
enum class ShardDimension {
  kLargest,  ///< of equal ones the first
  kFirst,
};
constexpr auto enum_names(ShardDimension) {
  return std::to_array<util::EnumName<ShardDimension>>(
      {{ShardDimension::kLargest, "largest"}, {ShardDimension::kFirst, "first"}});
}

/// How forward knows which unit comes next.
enum class ForwardPrefetch {
  kNone,      ///< it does not
  kImplicit,  ///< from the last forward
  kExplicit,  ///< from the first, which ranks compare
};
constexpr auto enum_names(ForwardPrefetch) {
  return std::to_array<util::EnumName<ForwardPrefetch>>({{ForwardPrefetch::kNone, "none"},
                                                         {ForwardPrefetch::kImplicit, "implicit"},
                                                         {ForwardPrefetch::kExplicit, "explicit"}});
}

/// When backward gathers the next unit, relative to this one's reduction (PyTorch's names are BACKWARD_PRE and _POST).
enum class BackwardPrefetch {
  kNone,  ///< on use
  kPost,
  kPre,
};
constexpr auto enum_names(BackwardPrefetch) {
  return std::to_array<util::EnumName<BackwardPrefetch>>({{BackwardPrefetch::kNone, "none"},
                                                          {BackwardPrefetch::kPost, "post"},
                                                          {BackwardPrefetch::kPre, "pre"}});
}

/// What a unit computes and communicates in. The master weights of the shards are always fp32.
struct MixedPrecisionOptions {
  std::string param_dtype = "float32";   ///< of gathered parameters, and so of compute
  std::string reduce_dtype = "float32";  ///< in which gradients are accumulated and reduced
  std::string buffer_dtype = "float32";  ///< of the model's floating-point buffers
  bool cast_forward_inputs = true;       ///< floating-point inputs of units are cast to param_dtype
  /// The shard's gradient stays in reduce_dtype until the optimizer uses it.
  bool keep_low_precision_grads = false;
  /// Patterns (with * and ?) of names of parameters that are gathered and reduced in fp32 whatever the others
  /// are: "*norm*".
  std::vector<std::string> keep_float32 = {};
};

/// What a wrap policy sees of a stage.
struct StageInfo {
  const nn::Hookable& module;
  std::string path;   ///< dotted
  int64_t numel = 0;  ///< parameters of the stage that no unit inside it holds
};

/// Whether a stage becomes a unit.
using WrapPolicy = std::function<bool(const StageInfo& info)>;

/// The dimension on which the per_parameter layout cuts a parameter; nothing: it stays whole on every rank.
using DimensionPolicy =
    std::function<std::optional<int64_t>(const std::string& name, const std::vector<int64_t>& shape)>;

/// How a model is cut into units and these into shards, and in which order they are gathered, freed and reduced.
struct ShardOptions {
  util::Named<Strategy> strategy = Strategy::kFullShard;
  util::Named<Layout> layout = Layout::kFlat;
  util::Named<ShardDimension> shard_dimension = ShardDimension::kLargest;
  /// per_parameter: cut parameters of one dimension (biases, weights of norms) as well. Off: they stay whole
  /// on every rank, and their gradients are all-reduced.
  bool shard_1d_parameters = false;
  /// Decides in place of these two. Library only.
  DimensionPolicy dimension_policy = {};

  /// Auto-wrap threshold: a stage with at least this many parameters that no unit inside it holds becomes a
  /// unit.
  int64_t min_num_params = 100'000;
  /// Stage types (Stage::type_name()) that become units whatever their size.
  std::vector<std::string> wrap_stages = {};
  /// Stage types that never become units themselves; stages inside them may.
  std::vector<std::string> exclude_stages = {"attention"};
  /// Stage types inside which nothing becomes a unit.
  std::vector<std::string> leaf_stages = {};
  /// Decides in place of min_num_params and wrap_stages. Library only.
  WrapPolicy wrap_policy = {};
  /// Exactly these stages and the root become units, in place of any policy. Library only.
  std::vector<const nn::Hookable*> units = {};
  /// Patterns of names of parameters that stay whole on every rank; their gradients are all-reduced.
  std::vector<std::string> replicated_parameters = {};

  /// full_shard: free a unit's parameters after its forward and gather them again in backward. Off: one
  /// gather a step, more memory.
  bool reshard_after_forward = true;
  /// Patterns of names of units that stay gathered from forward to backward all the same.
  std::vector<std::string> keep_after_forward = {};
  /// Free the root unit as well; off: it stays from its forward to the end of backward.
  bool reshard_root_after_forward = false;
  /// Free the unit that forward uses last as well; off: it stays, because backward begins with it.
  bool reshard_last_after_forward = false;

  util::Named<ForwardPrefetch> forward_prefetch = ForwardPrefetch::kImplicit;
  util::Named<BackwardPrefetch> backward_prefetch = BackwardPrefetch::kPre;
  /// At most one unit is gathered ahead of the one in use. Off: as many as forward_prefetch can issue.
  bool limit_all_gathers = true;

  /// Steps between two comparisons of the replicas (require_equal_replicas()); 0: only before the first step.
  /// The training loop's, not the engine's.
  int64_t replica_check_interval = 0;

  bool cpu_offload = false;        ///< master weights and optimizer state in host memory
  bool move_grads_to_cpu = false;  ///< with cpu_offload: the shards' gradients too, as soon as they are there

  /// Gradients are divided by this before they are summed over ranks and by world size / this after. 0: 1, or
  /// with a float16 reduction the power of two nearest the square root of the world size.
  double gradient_predivide_factor = 0;

  MixedPrecisionOptions mixed_precision = {};
};

}  // namespace fsdp::shard
