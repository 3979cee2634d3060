#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "doctor/checks.h"
#include "util/error.h"
#include "util/system.h"

namespace fsdp::doctor {
namespace {

namespace fs = std::filesystem;

/// Folders of the group and its parents: of version 2, or of version 1's `controller`.
std::vector<fs::path> group_folders(const fs::path& root, const std::string& controller) {
  std::string own;
  fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:PATH
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = util::concat(",", line.substr(first + 1, second - first - 1), ",");
    const bool is_version_1 = controllers.find("," + controller + ",") != std::string::npos;
    if (!is_version_1 && controllers != ",,") continue;
    own = line.substr(second + 1);
    if (is_version_1) {
      mount /= controller;
      break;
    }
  }
  // In a container the path may be that of the host, and the group itself is the mount.
  std::vector<fs::path> folders;
  for (fs::path path = own; path.has_relative_path(); path = path.parent_path()) {
    folders.push_back(mount / path.relative_path());
  }
  folders.push_back(mount);
  return folders;
}

/// The smallest number in the files of that name; "max" and what is near to 2^63 is no limit.
std::optional<int64_t> smallest(const fs::path& root, const std::string& controller,
                                const std::string& name) {
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  std::optional<int64_t> limit;
  for (const fs::path& folder : group_folders(root, controller)) {
    std::ifstream file(folder / name);
    int64_t value = 0;
    if (file >> value && value < kNoLimit) limit = std::min(limit.value_or(value), value);
  }
  return limit;
}

}  // namespace

std::optional<int64_t> memory_limit(const fs::path& root) {
  const auto limit = smallest(root, "memory", "memory.max");
  return limit ? limit : smallest(root, "memory", "memory.limit_in_bytes");
}

std::optional<int64_t> memory_in_use(const fs::path& root) {
  for (const fs::path& folder : group_folders(root, "memory")) {
    for (const char* name : {"memory.current", "memory.usage_in_bytes"}) {
      std::ifstream file(folder / name);
      int64_t value = 0;
      if (file >> value) return value;
    }
  }
  return std::nullopt;
}

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> quota;
  for (const fs::path& folder : group_folders(root, "cpu")) {
    double time = 0, period = 0;
    std::ifstream file(folder / "cpu.max");
    if (!(file >> time >> period)) {
      std::ifstream(folder / "cpu.cfs_quota_us") >> time;
      std::ifstream(folder / "cpu.cfs_period_us") >> period;
    }
    if (time > 0 && period > 0) quota = std::min(quota.value_or(time / period), time / period);
  }
  return quota;
}

}  // namespace fsdp::doctor
