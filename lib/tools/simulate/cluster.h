#pragma once

// Cluster: the machines of a simulation, and the placement of ranks on them.

#include <cstdint>

#include "comm/options/mesh_shape.h"
#include "comm/options/options.h"
#include "tools/simulate/network_table.h"

namespace fsdp::simulate {

/// Placement and communication of the ranks.
struct Cluster {
  comm::MeshShape mesh = {};
  int64_t ranks_of_host = 0;  ///< ranks on each host; 0: all ranks are on one host
  comm::Backend backend = {};
  NetworkTable network = {};
  double cores_of_rank = 0;  ///< cores that compute and communication share; 0: they share none
  int64_t threads = 1;       ///< threads that compute

  int64_t hosts() const {
    const int64_t world = mesh.world_size();
    return ranks_of_host > 0 ? (world + ranks_of_host - 1) / ranks_of_host : 1;
  }
};

}  // namespace fsdp::simulate
