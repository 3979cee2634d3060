#pragma once

// The cores and GPUs of this node, and the binding of workers to cores (--numa-binding).

#include <filesystem>
#include <vector>

#include "tools/launch/options.h"

namespace fsdp::launch {

/// The number of cores in this process's affinity mask, but at most the CPU quota of its control groups, and
/// at least 1. `root` contains proc/ and sys/.
int available_cores(const std::filesystem::path& root = "/");

/// A logical CPU, and the smallest CPU number of each group to which it belongs.
struct LogicalCpu {
  int id = 0;
  int numa_node = 0;
  int socket = 0;
  int core = 0;          ///< logical CPUs of one physical core share it
  int core_complex = 0;  ///< logical CPUs with one L3 cache share it
};

/// The CPUs that this process may run on, in ascending order. `system` contains devices/system.
std::vector<LogicalCpu> read_cpus(const std::filesystem::path& system = "/sys");

/// The number of GPUs that a worker would see: the NVIDIA devices, or the entries of CUDA_VISIBLE_DEVICES if
/// that is set and has fewer. Reads the kernel's files, because the driver's library would take seconds to
/// answer and stay loaded in the launcher.
int gpu_count();

/// The NUMA node of each GPU that a worker would see, in the order of the GPUs' numbers (by PCI address). -1
/// if unknown. Empty if nothing is known about the GPUs. `root` contains proc/ and sys/.
std::vector<int> gpu_numa_nodes(const std::filesystem::path& root = "/");

/// The CPU numbers for each worker; empty lists for kNone. Worker i is bound to the NUMA node of GPU i if
/// `gpu_numa_nodes` has it. Otherwise workers are distributed over the NUMA nodes in equal blocks. Throws
/// Error(kUsage) if a NUMA node has fewer physical cores than workers for kExclusive.
std::vector<std::vector<int>> bind_workers(NumaBinding binding, const std::vector<LogicalCpu>& cpus,
                                           const std::vector<int>& gpu_numa_nodes, int workers);

}  // namespace fsdp::launch
