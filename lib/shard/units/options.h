#pragma once

// The options of fully_shard().

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/util/enum_names.h"
#include "comm/options/link_type.h"
#include "model/families/parameter_part.h"

namespace fsdp::nn {
class Hookable;
}

namespace fsdp::shard {

/// The state that is sharded, and the ranks that share it (group_sizes.h).
enum class Strategy {
  kFullShard,         ///< ZeRO-3
  kShardGradOp,       ///< ZeRO-2: parameters stay gathered from forward to backward
  kHybridShard,       ///< ZeRO-3 within a slice (data x context), and a replica in each slice (dcn)
  kHybridShardZero2,  ///< ZeRO-2 within a slice, and a replica in each slice
  kNoShard,           ///< every rank holds everything, and gradients are all-reduced, as in DDP
};
constexpr auto enum_names(Strategy) {
  return std::to_array<util::EnumName<Strategy>>({{Strategy::kFullShard, "full_shard"},
                                                  {Strategy::kShardGradOp, "shard_grad_op"},
                                                  {Strategy::kHybridShard, "hybrid_shard"},
                                                  {Strategy::kHybridShardZero2, "hybrid_shard_zero2"},
                                                  {Strategy::kNoShard, "no_shard"}});
}

/// Whether units are cut within a slice (data x context) and replicated between slices (dcn).
inline bool is_hybrid(util::Named<Strategy> strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridShardZero2;
}

/// The ranks among which hybrid sharding divides gradients, master weights and optimizer state.
enum class HybridOptimizer {
  kReplicated,  ///< the ranks of a slice, which also divide the parameters; each slice has all of the state
  kGlobal,      ///< all ranks; a slice also keeps its parameters, in the type in which they are gathered
};
constexpr auto enum_names(HybridOptimizer) {
  return std::to_array<util::EnumName<HybridOptimizer>>(
      {{HybridOptimizer::kReplicated, "replicated"}, {HybridOptimizer::kGlobal, "global"}});
}

/// Whether every rank holds every parameter.
inline bool shards_nothing(util::Named<Strategy> strategy) { return strategy == Strategy::kNoShard; }

/// Whether parameters are freed between forward and backward (ZeRO-3). Other strategies keep them gathered.
inline bool reshards(util::Named<Strategy> strategy) {
  return strategy == Strategy::kFullShard || strategy == Strategy::kHybridShard;
}

/// How a unit is cut into shards (unit_layout.h).
enum class Layout {
  kFlat,          ///< cuts the concatenation of all parameters into equal shards
  kPerParameter,  ///< cuts each parameter on one dimension
};
constexpr auto enum_names(Layout) {
  return std::to_array<util::EnumName<Layout>>(
      {{Layout::kFlat, "flat"}, {Layout::kPerParameter, "per_parameter"}});
}

/// The dimension on which Layout::kPerParameter cuts a parameter.
enum class ShardDimension {
  kLargest,  ///< the largest dimension, and the first of several
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
  kExplicit,  ///< the next unit of the previous forward; ranks compare the first order, changes are reported
};
constexpr auto enum_names(ForwardPrefetch) {
  return std::to_array<util::EnumName<ForwardPrefetch>>({{ForwardPrefetch::kNone, "none"},
                                                         {ForwardPrefetch::kImplicit, "implicit"},
                                                         {ForwardPrefetch::kExplicit, "explicit"}});
}

/// When backward gathers the next unit, relative to the reduction of the current one (PyTorch: BACKWARD_PRE
/// and BACKWARD_POST).
enum class BackwardPrefetch {
  kNone,  ///< when the unit is used
  kPost,  ///< after the reduction has been issued
  kPre,   ///< before the current unit's gradients are computed
};
constexpr auto enum_names(BackwardPrefetch) {
  return std::to_array<util::EnumName<BackwardPrefetch>>({{BackwardPrefetch::kNone, "none"},
                                                          {BackwardPrefetch::kPost, "post"},
                                                          {BackwardPrefetch::kPre, "pre"}});
}

/// The type of the model's floating-point buffers.
enum class BufferType {
  /// The type of the module's parameters. Tables that a module computes (model/nn/buffers.h) keep their type.
  kParamDtype,
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

/// The floating-point type that `type` names; nullopt for kParamDtype.
inline std::optional<util::FloatType> float_type_of(util::Named<BufferType> type) {
  return type == BufferType::kParamDtype ? std::nullopt : util::parse_enum<util::FloatType>(type.name());
}

/// The types in which a unit computes and communicates. ShardOptions::param_storage is the type of its
/// shards.
struct MixedPrecisionOptions {
  using FloatType = util::FloatType;
  util::Named<FloatType> param_dtype = FloatType::kFloat32;  ///< type of gathered parameters and of compute
  util::Named<FloatType> reduce_dtype =
      FloatType::kFloat32;  ///< type in which gradients are added and reduced
  util::Named<BufferType> buffer_dtype = BufferType::kParamDtype;
  /// Whether floating-point inputs of units are cast to param_dtype. A region of autocast excludes float32.
  bool cast_forward_inputs = true;
  /// Whether the shard's gradient stays in reduce_dtype until the optimizer uses it.
  bool keep_low_precision_grads = false;
  /// Whether a rank keeps a copy of its shard in param_dtype beside fp32 master weights. Gathers then send
  /// the copy and cast nothing, and this library's optimizers write it in the pass that updates the weights.
  /// No effect on frozen models with adapters (trained_apart) and with hybrid_optimizer = "global", whose
  /// slices have such copies anyway. A unit on one rank then computes with the copy and is never freed: use
  /// FullParameters to read its parameters between steps.
  bool keep_low_precision_shards = false;
  /// Patterns (with * and ?) for names of parameters that are kept, gathered and reduced in fp32, whatever
  /// the types above and ShardOptions::param_storage: "*norm*".
  std::vector<std::string> keep_float32 = {};
};

/// A stage as a wrap policy sees it.
struct StageInfo {
  const nn::Hookable& module;
  std::string path;   ///< dotted path of the stage
  int64_t numel = 0;  ///< elements of the stage's parameters that no unit inside it holds
};

/// Whether a stage becomes a unit.
using WrapPolicy = std::function<bool(const StageInfo& info)>;

/// The dimension on which the per_parameter layout cuts a parameter; nullopt keeps it whole on every rank.
using DimensionPolicy =
    std::function<std::optional<int64_t>(const std::string& name, const std::vector<int64_t>& shape)>;

/// Options that one unit has in place of the model's (see ShardOptions and MixedPrecisionOptions). Options
/// that are not set have the model's value.
struct UnitOverrides {
  using FloatType = util::FloatType;
  std::optional<util::Named<Strategy>> strategy{};  ///< ranks over which the unit is cut and replicated
  /// Replaces reshard_root_after_forward for the root unit.
  std::optional<bool> reshard_after_forward{};
  std::optional<util::Named<FloatType>> param_storage{}, param_dtype{}, reduce_dtype{};
  std::optional<bool> cast_forward_inputs{}, keep_low_precision_grads{};
  std::optional<bool> cpu_offload{}, move_grads_to_cpu{};

  bool operator==(const UnitOverrides&) const = default;
};

/// A module that is a unit regardless of any policy.
struct WrappedModule {
  const nn::Hookable* module = nullptr;
  UnitOverrides options{};  ///< options of this unit; units inside it have their own
};

/// How a model is cut into units and units into shards, and in which order units are gathered, freed and
/// reduced.
struct ShardOptions {
  util::Named<Strategy> strategy = Strategy::kFullShard;
  /// Used by hybrid strategies only.
  util::Named<HybridOptimizer> hybrid_optimizer = HybridOptimizer::kReplicated;
  util::Named<Layout> layout = Layout::kFlat;
  util::Named<ShardDimension> shard_dimension = ShardDimension::kLargest;
  /// Whether the per_parameter layout also cuts parameters of one dimension (biases, weights of norms). Off:
  /// every rank holds them whole, and their gradients are all-reduced.
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
  /// Modules that are units in addition, with options of their own; see wrap() in shard/engine/wrap.h.
  /// Library only.
  std::vector<WrappedModule> wrapped = {};
  /// Modules inside which no policy is consulted: only `wrapped` modules become units there. Library only.
  std::vector<const nn::Hookable*> closed = {};
  /// Whether parameters that require a gradient form a unit of their own, for adapters in a frozen model.
  /// That unit has the lifetime of the root and keeps its shards in fp32; the other units have no gradients
  /// and no optimizer state. Units that stay gathered after forward then stay so for all micro-batches of a
  /// step. Library only.
  bool trained_apart = false;
  /// Patterns for names of parameters that stay whole on every rank; their gradients are all-reduced.
  std::vector<std::string> replicated_parameters = {};
  /// Result of nn::parallelize() for the model, if all ranks of the mesh's axis model compute its layers
  /// together. Library only.
  std::vector<nn::ParameterPart> parts = {};

  /// Whether full_shard frees a unit's parameters after its forward and gathers them again in backward. Off:
  /// one all-gather per micro-batch and more memory.
  bool reshard_after_forward = true;
  /// Patterns for names of units that stay gathered from forward to backward in any case.
  std::vector<std::string> keep_after_forward = {};
  /// Whether the root unit is freed too. Off: it stays gathered from its forward to the end of backward.
  bool reshard_root_after_forward = false;
  /// Whether the unit that forward uses last is freed too. Off: it stays gathered, because backward begins
  /// with it.
  bool reshard_last_after_forward = false;

  util::Named<ForwardPrefetch> forward_prefetch = ForwardPrefetch::kImplicit;
  util::Named<BackwardPrefetch> backward_prefetch = BackwardPrefetch::kPre;
  /// Whether at most one unit is gathered ahead. Off: all units that forward_prefetch expects.
  bool limit_all_gathers = true;

  /// Steps between two comparisons of the replicas (require_equal_replicas()); 0: only before the first step.
  /// Used by the training loop, not by the engine.
  int64_t replica_check_interval = 0;

  /// Type of the shards. With 16 bits there are no fp32 master weights: an update is computed in fp32 and
  /// rounded stochastically (model/kernels/stochastic_rounding.h).
  util::Named<util::FloatType> param_storage = util::FloatType::kFloat32;
  bool cpu_offload = false;        ///< whether shards and optimizer state are in host memory
  bool move_grads_to_cpu = false;  ///< whether the shards' gradients move there too, once they are reduced

  /// Whether reduce-scatters of gradients run in a group of their own, beside the all-gathers (FairScale's
  /// process_group_reduce_scatter). A gather then need not wait for the reduction issued before it, but takes
  /// its memory before that reduction has given its own back, so backward needs one more buffer of a unit's
  /// size. Needs twice the connections.
  bool reduce_scatter_group = false;

  /// Factor by which gradients are divided before they are summed over ranks; afterwards they are divided by
  /// world size / factor. 0: 1, or for a float16 reduction the power of two nearest the square root of the
  /// world size.
  double gradient_predivide_factor = 0;

  /// Whether gradients of micro-batches, whose kernels sum by sample (model/kernels/sample_sums.h), are added
  /// along the tree of shard/engine/reduce/sample_tree.h. They are sums over ranks then, not means. On the
  /// CPU only.
  bool sums_by_sample = false;

  MixedPrecisionOptions mixed_precision = {};

  /// How gathered parameters and reduced gradients travel over the links that quantize_links names; see
  /// shard/units/link_choice.h. Not used by the units of mixed_precision.keep_float32. All other collectives
  /// are exact.
  util::Named<comm::LinkType> gather_dtype = comm::LinkType::kExact;
  util::Named<comm::LinkType> reduce_dtype = comm::LinkType::kExact;
  util::Named<comm::CodedLinks> quantize_links = comm::CodedLinks::kBetweenHosts;
  /// Whether what the codes of gradients lack is added to the next gradients. Takes fp32 memory for each
  /// number that a rank sends in a reduction. Off: gradients are rounded stochastically.
  bool error_feedback = false;
  uint64_t quantization_seed = 0;  ///< seed of stochastic rounding. Library only
};

}  // namespace fsdp::shard
