#pragma once

// The numbers that describe a model's units: options, sizes, traffic. The cost of a step is computed from
// these numbers (shard/units/step_formula.h). They come from an engine (shard/engine/engine_sizes.h) or,
// without one, from the choice of the units and the arithmetic of the layout, which need shapes only. So the
// outline of a model is enough to plan it for any world size.

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "comm/options/mesh_shape.h"
#include "model/families/model_outline.h"
#include "shard/units/group_sizes.h"
#include "shard/units/link_choice.h"
#include "shard/units/options.h"
#include "shard/units/unit_choice.h"
#include "shard/units/unit_layout.h"
#include "shard/units/unit_options.h"

namespace fsdp::shard {

/// The pass of collectives between slices, for traces.
inline constexpr const char* kBetweenSlices = "between slices";

/// Communication of units, past or planned: numbers of collectives and the payload of this rank, as in
/// comm/api/trace.h.
struct Traffic {
  int64_t all_gathers = 0, all_gather_bytes = 0;
  int64_t reduce_scatters = 0, reduce_scatter_bytes = 0;
  int64_t all_reduces = 0, all_reduce_bytes = 0;
  int64_t shifts = 0, shift_bytes = 0;

  int64_t collectives() const;
  int64_t payload() const;
  Traffic& operator+=(const Traffic& other);
  Traffic operator-(const Traffic& other) const;
  bool operator==(const Traffic&) const = default;
};

/// One kind of collective in a Traffic.
struct TrafficKind {
  const char* op;    ///< its name in traces
  const char* name;  ///< of several, in tables
  int64_t Traffic::*number;
  int64_t Traffic::*bytes;
};
inline constexpr TrafficKind kTrafficKinds[] = {
    {"all_gather", "all-gathers", &Traffic::all_gathers, &Traffic::all_gather_bytes},
    {"reduce_scatter", "reduce-scatters", &Traffic::reduce_scatters, &Traffic::reduce_scatter_bytes},
    {"all_reduce", "all-reduces", &Traffic::all_reduces, &Traffic::all_reduce_bytes},
    {"shift", "shifts", &Traffic::shifts, &Traffic::shift_bytes}};

struct ParameterSizes {
  std::string name;
  std::vector<int64_t> shape;  ///< shape of the whole parameter
  int64_t shard_numel = 0;     ///< elements on the first rank of the unit, which has the most
  int64_t part_numel = 0;      ///< elements in the unit: fewer where ranks of the axis model have other parts

  bool operator==(const ParameterSizes&) const = default;
};

/// One unit on one rank. Numbers of elements, unless the name says bytes.
struct UnitSizes {
  std::string name;
  int64_t numel = 0;            ///< elements of the parameters, without padding
  int64_t shard_numel = 0;      ///< elements of the part that one rank updates, with padding
  int64_t gathered_numel = 0;   ///< elements of the output of an all-gather and the input of a reduce-scatter
  int64_t unsharded_numel = 0;  ///< elements of the buffer of which the parameters are views
  UnitOptions options;
  GroupSizes groups;
  LinkTypes links = {};
  std::vector<ParameterSizes> parameters;
  int model_ranks = 1;  ///< number of ranks of the axis model, which have parts of the unit's parameters

  bool gathers_in_place = true;  ///< see UnitLayout
  bool is_root = false;          ///< see Engine::is_root()
  bool has_trainable_parameters = true;
  int64_t most_uses = 1;                ///< most uses of one parameter in the model: 2 with tied weights
  bool shard_is_unsharded = false;      ///< see UnitStorage
  bool input_is_differentiable = true;  ///< see Engine
  bool output_is_differentiable = true;

  /// Whether it stays gathered for all micro-batches of a step (Schedule::reshard_frozen()).
  bool stays_in_step() const { return options.stays_in_step && !has_trainable_parameters; }
  /// Whether gathering it communicates.
  bool is_cut() const { return groups.shards > 1 && numel > 0; }
  /// Whether a rank updates only a part of it.
  bool has_parts() const { return groups.parts() > 1 && numel > 0; }
  /// Whether its shards are cut over slices once more.
  bool has_slices() const { return groups.slices > 1 && numel > 0; }

  /// Bytes of the weights that a rank keeps.
  int64_t shard_bytes() const { return shard_numel * util::element_size(options.storage.param_storage); }
  /// Bytes of what the rank keeps in addition and gathers from: the slice's shard, or its shard in
  /// param_dtype; 0 where it gathers from the shard itself.
  int64_t source_bytes() const {
    const bool keeps = groups.slices > 1 || options.storage.keeps_low_precision_shard;
    return keeps ? slice_shard_numel() * util::element_size(options.storage.slice_dtype()) : 0;
  }
  /// Bytes that go to the device for a gather, with cpu_offload.
  int64_t sent_bytes() const {
    return groups.slices == 1 && source_bytes() > 0 ? source_bytes() : shard_bytes();
  }
  /// Bytes of one fp32 number for each of these weights, such as a state of the optimizer.
  int64_t shard_bytes_in_float32() const { return shard_numel * 4; }
  /// Bytes of the unsharded buffer; 0 where the shard is the whole unit.
  int64_t unsharded_bytes() const { return shard_is_unsharded ? 0 : unsharded_numel * param_element(); }
  /// Bytes of the separate output of an all-gather, which exists until it has been copied to the unsharded
  /// buffer.
  int64_t communication_bytes() const { return gathers_in_place ? 0 : gathered_numel * param_element(); }
  /// Bytes of the buffer in which gradients are accumulated and from which they are reduced.
  int64_t gradient_bytes() const { return has_trainable_parameters ? gathered_numel * reduce_element() : 0; }
  /// Bytes of the gradient of this rank's shard.
  int64_t shard_gradient_bytes() const {
    if (!has_trainable_parameters) return 0;
    return shard_numel * (options.storage.keep_low_precision_grads ? reduce_element() : 4);
  }
  /// Bytes of this rank's part of an all-gather and of a reduction, in a slice and between slices, in memory.
  /// On coded links they are fewer (shard/units/unit_collectives.h).
  int64_t gather_payload_bytes() const { return slice_shard_numel() * param_element(); }
  int64_t reduce_payload_bytes() const { return slots_of_shards() * slice_shard_numel() * reduce_element(); }
  int64_t slice_gather_payload_bytes() const { return source_bytes() / groups.slices; }
  int64_t result_bytes() const { return shard_numel * reduce_element(); }

  /// Most bytes of codes, and of sums of what they say, that exist in a gather or reduction of the unit.
  int64_t code_bytes() const;
  /// Most bytes of the errors that a rank keeps with error_feedback. Fewer where the ranks of a host add up
  /// first.
  int64_t error_bytes() const;

  /// Number of shards that one reduction yields, in a slice and over replicas. With sums_by_sample there is
  /// one for each node of the tree and each gradient of a parameter (shard/engine/reduce/sample_tree.h).
  int64_t slots_of_shards() const;
  int64_t slots_of_replicas() const;
  /// This rank's payload of the reduce-scatter over replicas that sums by sample, and of the all-gather after
  /// it.
  int64_t slot_payload_bytes() const;

  bool operator==(const UnitSizes&) const = default;

  int64_t slice_shard_numel() const { return shard_numel * groups.slices; }
  int64_t param_element() const { return util::element_size(options.storage.param_dtype); }
  int64_t reduce_element() const { return util::element_size(options.storage.reduce_dtype); }
};

/// Whether a rank adds a unit's gradients of several passes before the all-reduce over replicas. Gradients
/// that move to host memory have left by then, and sums by sample have an order of their own.
bool adds_before_all_reduce(const GroupSizes& groups, const StorageOptions& options);

/// Whether the parameters are views of the shard, the slice's shard or the shard in param_dtype, so that
/// nothing is gathered.
bool shard_is_unsharded(const StorageOptions& options, const UnitLayout& layout, const GroupSizes& groups);

/// The sizes that follow from a unit's options, layout and groups.
UnitSizes sizes_of_unit(std::string name, const UnitOptions& options, const UnitLayout& layout,
                        const GroupSizes& groups, const LinkTypes& links = {});

/// Returns unit_sizes() of the engine that fully_shard() would make of such a model, before its first pass.
/// Throws Error(kUsage) as fully_shard() does. `decisions` replace options.units, wrapped and wrap_policy.
std::vector<UnitSizes> unit_sizes(const nn::ModelOutline& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh, const UnitDecisions& decisions = {});

}  // namespace fsdp::shard
