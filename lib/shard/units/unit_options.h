#pragma once

// The options of one unit. ShardOptions are those of the model; what keep_after_forward,
// replicated_parameters and keep_float32 say by name and ShardOptions::wrapped by module is resolved here,
// for each unit once. All that depends on a unit's options reads the result: sizes (shard/units/unit_sizes.h),
// schedule, storage, groups. Needs no libtorch.

#include <torch/headeronly/core/ScalarType.h>

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
  bool cpu_offload = false;
  bool move_grads_to_cpu = false;
  bool sums_by_sample = false;

  /// Of a slice's shard (hybrid_optimizer = "global"): what is gathered is rounded to it at the latest, so no more
  /// bytes cross the network between slices.
  c10::ScalarType slice_dtype() const {
    return util::element_size(param_dtype) < util::element_size(param_storage) ? param_dtype : param_storage;
  }

  bool operator==(const StorageOptions&) const = default;
};

struct UnitOptions {
  StorageOptions storage;
  // The ranks that share it (shard/units/group_sizes.h).
  util::Named<Strategy> strategy = Strategy::kFullShard;
  util::Named<HybridOptimizer> hybrid_optimizer = HybridOptimizer::kReplicated;
  int holders = 1;               ///< neighbours on the mesh's axis model, that are replicas too
  bool shares_gradient = false;  ///< the gradient is the sum over the holders, and the mean over other ranks
  bool stays_after_forward = false;  ///< gathered, until its backward has ended
  bool stays_in_step = false;        ///< without trainable parameters, then for all micro-batches of a step
  bool cast_forward_inputs = true;
  double gradient_predivide_factor = 0;  ///< see ShardOptions

  bool operator==(const UnitOptions&) const = default;
};

/// `own`, and what it leaves out from `others`.
UnitOverrides merged(UnitOverrides own, const UnitOverrides& others);

/// What a unit named `name` has of the model's options, and in their place what `own` has. `is_root`: it is
/// one of the root stage.
UnitOptions unit_options(const ShardOptions& model, const std::string& name, bool is_root,
                         const UnitOverrides& own);

/// Throws Error(kUsage) for options that exclude each other in the unit at `path`, and for those of `own`
/// that have no effect beside the others.
void require_no_unit_conflicts(const ShardOptions& model, const UnitOverrides& own, const std::string& path);

/// The factor by which gradients are divided before they are summed over the `ranks` of the run.
double predivide_factor(const UnitOptions& options, int ranks);

}  // namespace fsdp::shard
