#pragma once

// What the options of a model say about each of its units. Needs no libtorch.

#include <torch/headeronly/core/ScalarType.h>

#include <string>

#include "shard/options.h"

namespace fsdp::shard {

/// In what a unit is kept, computed and reduced, and where.
struct StorageOptions {
  util::Named<Layout> layout = Layout::kFlat;
  c10::ScalarType param_dtype = c10::ScalarType::Float;
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  bool keep_low_precision_grads = false;
  bool cpu_offload = false;
  bool move_grads_to_cpu = false;
};

/// How a unit behaves.
struct UnitOptions {
  StorageOptions storage;
  double gradient_predivide_factor = 1;  ///< the rest of the number of ranks divides after the sum
};

/// `keep_float32`: see MixedPrecisionOptions; `ranks`: of the run.
UnitOptions unit_options(const ShardOptions& options, bool keep_float32, int ranks);

}  // namespace fsdp::shard
