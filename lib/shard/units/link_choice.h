#pragma once

// The collectives of a unit whose parts are coded (comm/options/link_type.h), by the group that they are
// among:
//
//   gather_dtype   all-gathers of parameters over the ranks that cut the unit, and between slices
//   reduce_dtype   reduce-scatters and all-reduces of gradients
//
// A group codes with quantize_links = "all", or if its ranks are on several hosts. A gathered part is coded
// by its owner, who decodes it too, so that all ranks compute with the same parameters. A reduction adds
// exactly inside a host where the backend does so first (comm/backends/hierarchical_communicator.h), and
// codes what it sends to each other part of the group once. With slices (hybrid_optimizer = "global"),
// all-gathers and reductions inside a slice are exact where a slice is on one host, and the once-a-step
// collectives between slices are coded: the second partition of ZeRO++ (Wang et al., 2023).

#include "comm/options/link_type.h"
#include "comm/options/mesh_shape.h"
#include "shard/units/unit_options.h"

namespace fsdp::shard {

/// The types of a unit's collectives on their links.
struct LinkTypes {
  comm::LinkType gather = comm::LinkType::kExact, reduce = comm::LinkType::kExact;  ///< among its shards
  /// Among slices, or among replicas, which gather nothing.
  comm::LinkType gather_across = comm::LinkType::kExact, reduce_across = comm::LinkType::kExact;

  bool operator==(const LinkTypes&) const = default;
};

LinkTypes link_types(const UnitOptions& unit, const comm::MeshShape& mesh);

}  // namespace fsdp::shard
