#pragma once

// The limits that the control group of this process (a container's, a job's) sets; those of its parents count
// too.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace fsdp::doctor {

/// Bytes of memory; nothing: no limit, or none that can be seen. `root` holds proc/ and sys/.
std::optional<int64_t> memory_limit(const std::filesystem::path& root = "/");

/// Bytes of it in use.
std::optional<int64_t> memory_in_use(const std::filesystem::path& root = "/");

/// CPUs whose time the group has.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace fsdp::doctor
