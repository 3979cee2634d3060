#pragma once

// The parts of the examination, each over one kind of thing.

#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"
#include "doctor/doctor.h"
#include "util/cuda.h"

namespace fsdp::doctor {

/// CPU and its instructions, what computes on it, cores and threads. `matmul` is training.matmul.
Findings check_processors(const std::string& matmul);

/// Memory, and the limits of this process (ulimit) that a run can meet. `root` holds proc/ and sys/.
Findings check_memory(const std::filesystem::path& root = "/");
Findings check_limits();

/// Memory that two processes share, tried with a second process.
Finding check_shared_memory();

/// Loopback, the name of the host, ports.
Findings check_network();

/// Devices, their driver, and what this build can do with them.
Findings check_accelerators(const std::filesystem::path& root = "/");

/// The devices that the program can use.
std::vector<util::CudaDevice> usable_gpus();

/// Whether they multiply as training.float8 asks; nothing where it does not. `gpus`: usable_gpus()
Findings check_float8(const config::Config& config, const std::vector<util::CudaDevice>& gpus);

/// The disk under run.output_dir: whether files can be made there, what is free, how fast a file is safe.
Findings check_disk(const config::Config& config);

/// Whether the files that the config names are there, whether the model has an embedding for each id of the
/// data, and whether its first weights are those of the model.
Findings check_files(const config::Config& config);

}  // namespace fsdp::doctor
