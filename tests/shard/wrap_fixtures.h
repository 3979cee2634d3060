#pragma once

// Chains of matrices whose modules are wrapped one by one.

#include <vector>

#include "shard/engine/wrap.h"
#include "support/nested_models.h"
#include "support/tiny_models.h"
#include "support/wrapped_paths.h"

namespace fsdp::testing {

/// Nothing but the root would be a unit.
inline shard::ShardOptions one_unit() {
  shard::ShardOptions options;
  options.min_num_params = 1'000'000;
  return options;
}

/// The units of a chain in whose scope these are wrapped.
inline std::vector<shard::UnitPlan> plans_of(ChainStage& chain, shard::ShardOptions options,
                                             const OptionsByPath& wrapped,
                                             const shard::UnitOverrides& defaults = {}) {
  const shard::EnableWrap scope(defaults);
  wrap_paths(chain, wrapped);
  options = shard::WrappedModules::added_to(options);
  shard::WrappedModules::clear();
  return plan_units(chain, options);
}

}  // namespace fsdp::testing
