#pragma once

// The parts of the examination. `root` contains proc/ and sys/.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/device/cuda.h"
#include "setup/config/config.h"
#include "tools/doctor/doctor.h"

namespace fsdp::doctor {

/// CPU, its instructions, kernels, cores and threads. `matmul` is training.matmul.
Findings check_processors(const std::string& matmul);

Findings check_memory(const std::filesystem::path& root = "/");

/// Limits of this process (ulimit) that a run may reach.
Findings check_limits();

/// Memory shared by two processes, tried with a child.
Finding check_shared_memory();

/// Loopback, host name, ports.
Findings check_network();

/// GPUs, their driver, and what this build supports.
Findings check_accelerators(const std::filesystem::path& root = "/");

/// The GPUs that the program can use.
std::vector<util::CudaDevice> usable_gpus();

/// Whether `gpus`, the usable_gpus(), support training.float8; empty if the config does not use it.
Findings check_float8(const config::Config& config, const std::vector<util::CudaDevice>& gpus);

/// The disk under run.output_dir: permission, free space, speed.
Findings check_disk(const config::Config& config);

/// Whether the files of the config exist, the model has an embedding for each id of the data, and its first
/// weights fit it.
Findings check_files(const config::Config& config);

/// Logical CPUs that the process may run on; 0: not known.
int allowed_cpus();

/// Limits of this process's control group (a container's, a job's) or of its parents, whichever are lower.

/// Bytes of memory; nothing: no known limit.
std::optional<int64_t> memory_limit(const std::filesystem::path& root = "/");
/// Bytes of it in use.
std::optional<int64_t> memory_in_use(const std::filesystem::path& root = "/");
/// Number of CPUs' worth of time.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace fsdp::doctor
