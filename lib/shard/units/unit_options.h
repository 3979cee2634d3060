#pragma once

// The options of one unit. ShardOptions are the options of a model. Options by name (keep_after_forward,
// replicated_parameters, keep_float32) and by module (ShardOptions::wrapped) are resolved here, once for each
// unit. Sizes (shard/units/unit_sizes.h), schedule, storage and groups read the result.

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "base/dtype/dtype.h"
#include "shard/units/options.h"

namespace fsdp::shard {

/// The layout of a unit, the types in which it is kept, computed and reduced, and where it is kept.
struct StorageOptions {
  util::Named<Layout> layout = Layout::kFlat;
  c10::ScalarType param_storage = c10::ScalarType::Float;
  c10::ScalarType param_dtype = c10::ScalarType::Float;
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  bool keep_low_precision_grads = false;
  /// Whether a rank also keeps its shard in param_dtype, which has fewer bits than param_storage.
  bool keeps_low_precision_shard = false;
  bool cpu_offload = false;
  bool move_grads_to_cpu = false;
  bool sums_by_sample = false;

  /// Type of a slice's shard (hybrid_optimizer = "global"). Parameters are rounded to it before they are
  /// sent, so no more bytes than necessary cross the network between slices.
  c10::ScalarType slice_dtype() const {
    return util::element_size(param_dtype) < util::element_size(param_storage) ? param_dtype : param_storage;
  }

  bool operator==(const StorageOptions&) const = default;
};

/// See ShardOptions.
struct LinkOptions {
  comm::LinkType gather_dtype = comm::LinkType::kExact, reduce_dtype = comm::LinkType::kExact;
  comm::CodedLinks coded = comm::CodedLinks::kBetweenHosts;
  bool error_feedback = false;
  uint64_t seed = 0;

  bool operator==(const LinkOptions&) const = default;
};

struct UnitOptions {
  StorageOptions storage;
  // The ranks that share the unit (shard/units/group_sizes.h).
  util::Named<Strategy> strategy = Strategy::kFullShard;
  util::Named<HybridOptimizer> hybrid_optimizer = HybridOptimizer::kReplicated;
  int holders = 1;               ///< number of neighbours on the mesh's axis model that hold the same part
  bool shares_gradient = false;  ///< whether the gradient is the sum over the holders
  bool stays_after_forward = false;  ///< whether the unit stays gathered until its backward has ended
  bool stays_in_step = false;        ///< whether it then stays so for all micro-batches, if it is frozen
  bool cast_forward_inputs = true;
  double gradient_predivide_factor = 0;  ///< see ShardOptions
  LinkOptions links = {};

  bool operator==(const UnitOptions&) const = default;
};

/// Returns `own`, with options that it does not set from `others`.
UnitOverrides merged(UnitOverrides own, const UnitOverrides& others);

/// Returns the options of the unit `name`: those of `own`, and the model's where `own` sets none. `is_root`:
/// whether the unit belongs to the root stage.
UnitOptions unit_options(const ShardOptions& model, const std::string& name, bool is_root,
                         const UnitOverrides& own);

/// Throws Error(kUsage) for options that exclude each other in the unit at `path`, and for options of `own`
/// that have no effect with the others.
void require_no_unit_conflicts(const ShardOptions& model, const UnitOverrides& own, const std::string& path);

/// The factor by which gradients are divided before they are summed over the `ranks` of the run.
double predivide_factor(const UnitOptions& options, int ranks);

}  // namespace fsdp::shard
