#pragma once

// What fully_shard() is configured with. Needs no libtorch.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/util/enum_names.h"
#include "model/families/parameter_part.h"

namespace fsdp::nn {
class Hookable;
}

namespace fsdp::shard {

/// What is sharded, and over which ranks (group_sizes.h).
enum class Strategy {
  kFullShard,         ///< ZeRO-3
  kShardGradOp,       ///< ZeRO-2: parameters stay gathered from forward to backward
  kHybridShard,       ///< ZeRO-3 within a slice (data x context), a replica in each slice (dcn)
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

/// Units are cut within a slice (data x context) and replicated between slices (dcn).
inline bool is_hybrid(util::Named<Strategy> strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridShardZero2;
}

/// The ranks among which hybrid sharding divides gradients, master weights and optimizer state.
enum class HybridOptimizer {
  kReplicated,  ///< those of a slice, as the parameters; each slice has all of them
  kGlobal,  ///< all ranks; a slice keeps its parameters beside them, in the type in which they are gathered
};
constexpr auto enum_names(HybridOptimizer) {
  return std::to_array<util::EnumName<HybridOptimizer>>(
      {{HybridOptimizer::kReplicated, "replicated"}, {HybridOptimizer::kGlobal, "global"}});
}

/// Every rank holds every parameter.
inline bool shards_nothing(util::Named<Strategy> strategy) { return strategy == Strategy::kNoShard; }

/// ZeRO-3: parameters are freed between forward and backward. The others keep them gathered (ZeRO-2).
inline bool reshards(util::Named<Strategy> strategy) {
  return strategy == Strategy::kFullShard || strategy == Strategy::kHybridShard;
}

/// How a unit is cut into shards (unit_layout.h).
enum class Layout {
  kFlat,          ///< the concatenation of all its parameters, evenly
  kPerParameter,  ///< each parameter on one dimension
};
constexpr auto enum_names(Layout) {
  return std::to_array<util::EnumName<Layout>>(
      {{Layout::kFlat, "flat"}, {Layout::kPerParameter, "per_parameter"}});
}

/// The dimension on which Layout::kPerParameter cuts a parameter.
enum class ShardDimension {
  kLargest,  ///< the first of the largest
  kFirst,
};
constexpr auto enum_names(ShardDimension) {
  return std::to_array<util::EnumName<ShardDimension>>(
      {{ShardDimension::kLargest, "largest"}, {ShardDimension::kFirst, "first"}});
}

/// How forward knows which unit to gather ahead.
enum class ForwardPrefetch {
  kNone,      ///< nothing is gathered ahead
  kImplicit,  ///< the likely next unit, in every forward
  kExplicit,  ///< from the previous forward; ranks compare the first order, and later changes are reported
};
constexpr auto enum_names(ForwardPrefetch) {
  return std::to_array<util::EnumName<ForwardPrefetch>>({{ForwardPrefetch::kNone, "none"},
                                                         {ForwardPrefetch::kImplicit, "implicit"},
                                                         {ForwardPrefetch::kExplicit, "explicit"}});
}

/// When backward gathers the next unit, relative to the reduction of the current one (PyTorch: BACKWARD_PRE
/// and BACKWARD_POST).
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

/// The type of the model's floating-point buffers.
enum class BufferType {
  kParamDtype,  ///< that of the parameters of their module; tables that a module computes (model/nn/buffers.h) keep theirs
  kFloat32,
  kBFloat16,
  kFloat16,
};
constexpr auto enum_names(BufferType) {
  return std::to_array<util::EnumName<BufferType>>({{BufferType::kParamDtype, "param_dtype"},
                                                    {BufferType::kFloat32, "float32"},
                                                    {BufferType::kBFloat16, "bfloat16"},
                                                    {BufferType::kFloat16, "float16"}});
}

/// The type that is named; nullopt for kParamDtype.
inline std::optional<util::FloatType> float_type_of(util::Named<BufferType> type) {
  return type == BufferType::kParamDtype ? std::nullopt : util::parse_enum<util::FloatType>(type.name());
}

/// What a unit computes and communicates in. What its shards are kept in is ShardOptions::param_storage.
struct MixedPrecisionOptions {
  using FloatType = util::FloatType;
  util::Named<FloatType> param_dtype = FloatType::kFloat32;  ///< of gathered parameters and of compute
  util::Named<FloatType> reduce_dtype =
      FloatType::kFloat32;  ///< in which gradients are accumulated and reduced
  util::Named<BufferType> buffer_dtype = BufferType::kParamDtype;
  /// Floating-point inputs of units are cast to param_dtype; but not to float32 in a region of autocast.
  bool cast_forward_inputs = true;
  /// The shard's gradient stays in reduce_dtype until the optimizer uses it.
  bool keep_low_precision_grads = false;
  /// Patterns (with * and ?) of names of parameters that are kept, gathered and reduced in fp32 regardless of
  /// the types above and of ShardOptions::param_storage: "*norm*".
  std::vector<std::string> keep_float32 = {};
};

/// A stage as a wrap policy sees it.
struct StageInfo {
  const nn::Hookable& module;
  std::string path;   ///< dotted
  int64_t numel = 0;  ///< elements of the stage's parameters that no unit inside it holds
};

/// Whether a stage becomes a unit.
using WrapPolicy = std::function<bool(const StageInfo& info)>;

/// The dimension on which the per_parameter layout cuts a parameter; nullopt keeps it whole on every rank.
using DimensionPolicy =
    std::function<std::optional<int64_t>(const std::string& name, const std::vector<int64_t>& shape)>;

/// Options that one unit has in place of the model's (see ShardOptions and MixedPrecisionOptions). Absent
/// ones are the model's.
struct UnitOverrides {
  using FloatType = util::FloatType;
  std::optional<util::Named<Strategy>> strategy{};  ///< over which ranks the unit is cut and replicated
  std::optional<bool> reshard_after_forward{};  ///< of the root too: in place of reshard_root_after_forward
  std::optional<util::Named<FloatType>> param_storage{}, param_dtype{}, reduce_dtype{};
  std::optional<bool> cast_forward_inputs{}, keep_low_precision_grads{};
  std::optional<bool> cpu_offload{}, move_grads_to_cpu{};

  bool operator==(const UnitOverrides&) const = default;
};

/// A module that is a unit whatever the policy says.
struct WrappedModule {
  const nn::Hookable* module = nullptr;
  UnitOverrides options{};  ///< of this unit; units inside it have their own
};

/// How a model is cut into units and units into shards, and in which order units are gathered, freed and
/// reduced.
struct ShardOptions {
  util::Named<Strategy> strategy = Strategy::kFullShard;
  util::Named<HybridOptimizer> hybrid_optimizer = HybridOptimizer::kReplicated;  ///< of hybrid strategies
  util::Named<Layout> layout = Layout::kFlat;
  util::Named<ShardDimension> shard_dimension = ShardDimension::kLargest;
  /// per_parameter: also cut parameters of one dimension (biases, weights of norms). Off: every rank holds
  /// them whole, and their gradients are all-reduced.
  bool shard_1d_parameters = false;
  /// Replaces shard_dimension and shard_1d_parameters. Library only.
  DimensionPolicy dimension_policy = {};

  /// Auto-wrap threshold: a stage becomes a unit when at least this many of its parameters belong to no unit
  /// inside it.
  int64_t min_num_params = 100'000;
  /// Stage types (Stage::type_name()) that become units whatever their size.
  std::vector<std::string> wrap_stages = {};
  /// Stage types that never become units themselves; stages inside them may.
  std::vector<std::string> exclude_stages = {"attention"};
  /// Stage types inside which nothing becomes a unit.
  std::vector<std::string> leaf_stages = {};
  /// Replaces min_num_params and wrap_stages. Library only.
  WrapPolicy wrap_policy = {};
  /// Exactly these stages and the root become units; no policy is consulted. Library only.
  std::vector<const nn::Hookable*> units = {};
  /// These are units in addition, with options of their own; see wrap() in shard/engine/wrap.h. Library only.
  std::vector<WrappedModule> wrapped = {};
  /// Inside these no policy is asked: nothing but `wrapped` becomes a unit. Library only.
  std::vector<const nn::Hookable*> closed = {};
  /// For adapters in a frozen model. Parameters that require a gradient form a unit of their own, with the lifetime of
  /// the root, whose shards stay in fp32; so the other units have neither gradients nor state of an optimizer. Units that
  /// stay gathered after forward then stay so for all micro-batches of a step. Library only.
  bool trained_apart = false;
  /// Patterns of names of parameters that stay whole on every rank; their gradients are all-reduced.
  std::vector<std::string> replicated_parameters = {};
  /// What nn::parallelize() has returned for the model, if its layers are computed by all ranks of the mesh's axis
  /// model together. Library only.
  std::vector<nn::ParameterPart> parts = {};

  /// full_shard: free a unit's parameters after its forward and gather them again in backward. Off: one
  /// all-gather per micro-batch and more memory.
  bool reshard_after_forward = true;
  /// Patterns of names of units that stay gathered from forward to backward regardless.
  std::vector<std::string> keep_after_forward = {};
  /// Also free the root unit; off: it stays gathered from its forward to the end of backward.
  bool reshard_root_after_forward = false;
  /// Also free the unit that forward uses last; off: it stays gathered, because backward begins with it.
  bool reshard_last_after_forward = false;

  util::Named<ForwardPrefetch> forward_prefetch = ForwardPrefetch::kImplicit;
  util::Named<BackwardPrefetch> backward_prefetch = BackwardPrefetch::kPre;
  /// At most one unit is gathered ahead of the one in use. Off: all that forward_prefetch expects.
  bool limit_all_gathers = true;

  /// Steps between two comparisons of the replicas (require_equal_replicas()); 0: only before the first step.
  /// Used by the training loop, not by the engine.
  int64_t replica_check_interval = 0;

  /// Of the shards. In 16 bits there are no fp32 master weights: an update is computed in fp32 and rounded
  /// stochastically (model/kernels/stochastic_rounding.h).
  util::Named<util::FloatType> param_storage = util::FloatType::kFloat32;
  bool cpu_offload = false;  ///< shards and optimizer state in host memory
  bool move_grads_to_cpu =
      false;  ///< with cpu_offload: also the shards' gradients, as soon as they are reduced

  /// Reduce-scatters of gradients run in a group of their own, beside the all-gathers (FairScale's
  /// process_group_reduce_scatter): a gather need not wait for the reduction issued before it, but takes its
  /// memory before that has given its own back, so that backward needs one more buffer of a unit's size.
  /// Twice the connections.
  bool reduce_scatter_group = false;

  /// Gradients are divided by this factor before they are summed over ranks, and by world size / factor
  /// afterwards. 0: 1, or for a float16 reduction the power of two nearest the square root of the world size.
  double gradient_predivide_factor = 0;

  /// Gradients of micro-batches, whose kernels sum by sample (model/kernels/sample_sums.h), are added up along the tree of
  /// shard/engine/reduce/sample_tree.h, and are sums over ranks, not means; see Engine::begin_sample_sums(). On the CPU only.
  bool sums_by_sample = false;

  MixedPrecisionOptions mixed_precision = {};
};

}  // namespace fsdp::shard
