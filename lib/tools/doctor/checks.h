#pragma once

// The checks of the examination. `root` contains proc/ and sys/.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/device/cuda.h"
#include "setup/config/config.h"
#include "tools/doctor/doctor.h"

namespace fsdp::doctor {

/// Checks the CPU, its instructions, kernels, cores and threads. `matmul` is training.matmul.
Findings check_processors(const std::string& matmul);

Findings check_memory(const std::filesystem::path& root = "/");

/// Checks the limits of this process (ulimit) that a run may reach.
Findings check_limits();

/// Checks shared memory of two processes, by trying it with a child.
Finding check_shared_memory();

/// Checks loopback, host name and ports.
Findings check_network();

/// Checks GPUs, their driver, and whether this build supports them.
Findings check_accelerators(const std::filesystem::path& root = "/");

/// The GPUs that the program can use.
std::vector<util::CudaDevice> usable_gpus();

/// Checks that `gpus`, the usable_gpus(), support training.float8. Empty if the config does not use it.
Findings check_float8(const config::Config& config, const std::vector<util::CudaDevice>& gpus);

/// Checks the disk under run.output_dir: permission, free space, speed.
Findings check_disk(const config::Config& config);

/// Checks that the files of the config exist, that the model has an embedding for each id of the data, and
/// that the initial weights fit the model.
Findings check_files(const config::Config& config);

/// Number of logical CPUs on which the process may run. 0: unknown.
int allowed_cpus();

// The limits below are the lowest of this process's control group (of a container or job) and of its parents.

/// Limit of memory in bytes. Nothing if no limit is known.
std::optional<int64_t> memory_limit(const std::filesystem::path& root = "/");
/// Memory in use in bytes.
std::optional<int64_t> memory_in_use(const std::filesystem::path& root = "/");

}  // namespace fsdp::doctor
