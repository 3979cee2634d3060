#pragma once

// The GPUs of this node, as the kernel shows them: asking the driver's library would take seconds and load it
// into the launcher.

#include <filesystem>
#include <vector>

namespace fsdp::launch {

/// GPUs that a worker would see: the entries of CUDA_VISIBLE_DEVICES if it is set, else the NVIDIA devices.
int gpu_count();

/// The NUMA node of each of those GPUs, in the order of their numbers in a worker (that of PCI addresses), -1
/// where the system does not say; empty when nothing is known of the GPUs. `root` holds proc/ and sys/.
std::vector<int> gpu_numa_nodes(const std::filesystem::path& root = "/");

}  // namespace fsdp::launch
