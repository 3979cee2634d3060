#pragma once
// Facts that the operating system reports about this host and this process.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::util {

/// Returns the host's name, made printable(), or "this machine" if it has none.
std::string host_name();

/// Number of cores whose full time the CPU quotas of this process's control groups (v1 and v2) allow, rounded
/// down, at least 1; nothing without a quota. `root` contains proc/ and sys/.
std::optional<int> cpu_quota(const std::filesystem::path& root = "/");
/// Returns cpu_quota() without rounding.
std::optional<double> cpu_time_quota(const std::filesystem::path& root = "/");

/// Returns the value of the first line "NAME : VALUE" of a file such as /proc/cpuinfo; nothing if there is
/// none.
std::optional<std::string> line_value(const std::filesystem::path& file, std::string_view name);

/// Returns the value in bytes of a line such as "MemTotal:  1024 kB"; nothing if there is none.
std::optional<int64_t> kilobytes(const std::filesystem::path& file, std::string_view name);

/// Resident memory of this process, its peak and now, in bytes.
int64_t peak_resident_bytes();
int64_t resident_bytes();

/// Returns 16 random hexadecimal digits.
std::string random_id();

/// The size of a page of memory: 4 KiB on x86_64, up to 64 KiB on other processors.
int64_t page_bytes();

/// Page faults of this process that needed no read from disk. A step that reuses its memory causes none.
int64_t minor_faults();

/// Returns what at::get_num_threads() would be before anything sets it, for programs that do not load
/// libtorch: MKL_NUM_THREADS or OMP_NUM_THREADS, otherwise one thread for each physical core that the process
/// may run on, at most cpu_quota() (train::prepare_device()).
int default_compute_threads();

}  // namespace fsdp::util
