#include "base/util/system.h"

#include <sched.h>
#include <strings.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <limits>
#include <random>
#include <set>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::util {
namespace {

int physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<int> cores;  // each by its first logical CPU
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream siblings(concat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    int first = cpu;
    cores.insert(siblings >> first ? first : cpu);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

/// Returns the number of cores whose time the group may take, or infinity. Version 2: "MICROSECONDS PERIOD"
/// or "max PERIOD" in cpu.max.
double quota_of(const std::filesystem::path& group) {
  double quota = -1, period = 0;
  if (std::ifstream file(group / "cpu.max"); file >> quota >> period) {
    return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
  }
  std::ifstream(group / "cpu.cfs_quota_us") >> quota;
  std::ifstream(group / "cpu.cfs_period_us") >> period;
  return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

/// Returns the least quota of a group and the groups around it. A container may see its own group as the
/// outermost one, under a path that does not exist inside.
double least_quota(const std::filesystem::path& mount, const std::filesystem::path& group) {
  double least = quota_of(mount);
  std::filesystem::path at = mount;
  for (const auto& part : group.relative_path()) least = std::min(least, quota_of(at /= part));
  return least;
}

/// Reads MKL's variable; 0: not set. MKL reads a malformed value as one thread.
int threads_of_mkl() {
  const char* text = std::getenv("MKL_NUM_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  return *end == '\0' && threads >= 0 ? static_cast<int>(threads) : 1;
}

/// Reads OpenMP's variable; 0: not set. The first number of a list counts; the others are for nested teams.
int threads_of_openmp() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return *name ? printable(name) : "this machine";
}

std::optional<double> cpu_time_quota(const std::filesystem::path& root) {
  double least = std::numeric_limits<double>::infinity();
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b" of v1, "0::/a/b" of v2
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    const std::filesystem::path mounts = root / "sys/fs/cgroup";
    if (controllers.empty()) {
      for (const auto& mount : {mounts, mounts / "unified"})
        least = std::min(least, least_quota(mount, group));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      for (const auto& mount : {mounts / controllers, mounts / "cpu"})
        least = std::min(least, least_quota(mount, group));
    }
  }
  return std::isfinite(least) ? std::optional(least) : std::nullopt;
}

std::optional<int> cpu_quota(const std::filesystem::path& root) {
  const auto quota = cpu_time_quota(root);
  if (!quota) return std::nullopt;
  return std::max(1, static_cast<int>(std::min(*quota, double{1 << 20})));
}

std::optional<std::string> line_value(const std::filesystem::path& file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name)) continue;
    const size_t at = line.find_first_not_of(" \t", name.size());
    if (at == std::string::npos || line[at] != ':') continue;
    const size_t begin = line.find_first_not_of(" \t", at + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return std::nullopt;
}

std::optional<int64_t> kilobytes(const std::filesystem::path& file, std::string_view name) {
  const auto text = line_value(file, name);
  if (!text) return std::nullopt;
  try {
    return std::stoll(*text) * 1024;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// getrusage() would include the program that ran in this process before exec(), such as a launcher in Python.
int64_t peak_resident_bytes() { return kilobytes("/proc/self/status", "VmHWM").value_or(resident_bytes()); }

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * page_bytes();
}

std::string random_id() {
  std::random_device source;
  return hex_digits((uint64_t{source()} << 32) | source());
}

int64_t page_bytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

int64_t minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// This is MKL's rule, which libtorch follows.
int default_compute_threads() {
  const int allowed = physical_cores(), cores = std::min(allowed, cpu_quota().value_or(allowed));
  int threads = threads_of_mkl();
  if (threads == 0) threads = threads_of_openmp();
  if (threads == 0) return cores;
  const char* dynamic = std::getenv("MKL_DYNAMIC");
  const bool exceeds_cores = dynamic != nullptr && strcasecmp(dynamic, "false") == 0;
  return exceeds_cores ? threads : std::min(threads, cores);
}

}  // namespace fsdp::util
