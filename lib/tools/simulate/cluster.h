#pragma once

// Cluster: the machines of a simulation, and how the ranks lie on them.

#include <cstdint>

#include "comm/options/mesh_shape.h"
#include "comm/options/options.h"
#include "tools/simulate/network_table.h"

namespace fsdp::simulate {

/// Where the ranks are and how they communicate.
struct Cluster {
  comm::MeshShape mesh = {};
  int64_t ranks_of_host = 0;  ///< 0: all are on one
  comm::Backend backend = {};
  NetworkTable network = {};
  double cores_of_rank = 0;  ///< that compute and communication share; 0: they share none
  int64_t threads = 1;       ///< of the compute

  int64_t hosts() const {
    const int64_t world = mesh.world_size();
    return ranks_of_host > 0 ? (world + ranks_of_host - 1) / ranks_of_host : 1;
  }
};

}  // namespace fsdp::simulate
