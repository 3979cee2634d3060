#pragma once

// --numa-binding: which cores each worker of a node may run on.

#include <filesystem>
#include <vector>

#include "launch/options.h"

namespace fsdp::launch {

/// One logical CPU and the smallest CPU number of each group that it belongs to.
struct LogicalCpu {
  int id = 0;
  int numa_node = 0;
  int socket = 0;
  int core = 0;          ///< logical CPUs of one physical core share it
  int core_complex = 0;  ///< those behind one L3 cache share it
};

/// The CPUs that this process may run on, in the order of their numbers. `system` holds devices/system.
std::vector<LogicalCpu> read_cpus(const std::filesystem::path& system = "/sys");

/// The CPU numbers for each worker, none for kNone. Worker i belongs to the NUMA node of GPU i if
/// `gpu_numa_nodes` knows it, else the workers are dealt out to the NUMA nodes in equal blocks. Throws
/// Error(kUsage) when kExclusive has fewer physical cores than workers on a NUMA node.
std::vector<std::vector<int>> bind_workers(NumaBinding binding, const std::vector<LogicalCpu>& cpus,
                                           const std::vector<int>& gpu_numa_nodes, int workers);

}  // namespace fsdp::launch
