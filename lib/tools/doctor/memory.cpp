#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "comm/shm/shared_segment.h"
#include "tools/doctor/checks.h"
#include "tools/launch/node_hardware.h"

namespace fsdp::doctor {
namespace {

namespace fs = std::filesystem;
using util::human_bytes;

/// Folders of the control group and its parents, in version 2 or in version 1's `controller`.
std::vector<fs::path> group_folders(const fs::path& root, const std::string& controller) {
  std::string own;
  fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // format: NUMBER:CONTROLLERS:PATH
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = concat(",", line.substr(first + 1, second - first - 1), ",");
    const bool is_version_1 = controllers.find("," + controller + ",") != std::string::npos;
    if (!is_version_1 && controllers != ",,") continue;
    own = line.substr(second + 1);
    if (is_version_1) {
      mount /= controller;
      break;
    }
  }
  // In a container the path may be the host's, and the mount may be the group itself.
  std::vector<fs::path> folders;
  for (fs::path path = own; path.has_relative_path(); path = path.parent_path()) {
    folders.push_back(mount / path.relative_path());
  }
  folders.push_back(mount);
  return folders;
}

/// The smallest number in the files of this name. "max" and numbers near 2^63 mean no limit.
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

/// Opens the segment through /proc and writes to it, like another rank of the host. Returns an exit code.
int write_as_other_process(const comm::SharedSegment& segment, pid_t owner, int64_t offset) {
  try {
    const auto mapped = comm::SharedSegment::open(owner, segment.fd(), segment.size(), segment.sign());
    *reinterpret_cast<std::atomic<uint64_t>*>(mapped->data() + offset) = segment.sign();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
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

Findings check_memory(const fs::path& root) {
  constexpr int64_t kLittle = int64_t{1} << 30;
  const fs::path file = root / "proc/meminfo";
  const auto total = util::kilobytes(file, "MemTotal"), available = util::kilobytes(file, "MemAvailable");
  if (!total || !available)
    return {{FindingVerdict::kWarn, "memory", file.string() + " does not report the memory", "mount /proc"}};
  int64_t usable = *available;
  Finding finding{FindingVerdict::kOk, "memory", "", ""};
  finding.text = concat(human_bytes(*available), " available of ", human_bytes(*total), ", swap ",
                        human_bytes(util::kilobytes(file, "SwapTotal").value_or(0)));
  const auto limit = memory_limit(root);
  if (limit && *limit < *total) {
    const int64_t used = memory_in_use(root).value_or(0);
    finding.text += concat("; the control group grants ", human_bytes(*limit), ", of which ",
                           human_bytes(used), " are in use");
    usable = std::min(usable, *limit - used);
  }
  if (usable < kLittle) {
    finding.verdict = FindingVerdict::kWarn;
    finding.remedy =
        "little for a run: end other programs or raise the limit; fsdp-plan CONFIG shows what a rank needs";
  }
  return {finding};
}

Findings check_limits() {
  constexpr rlim_t kFilesOfALargeRun = 1024;
  const struct {
    const char* subject;
    decltype(RLIMIT_AS) resource;
    rlim_t enough;
    const char* remedy;
  } limits[] = {
      {"limit nofile", RLIMIT_NOFILE, kFilesOfALargeRun,
       "a run of many processes opens more files and connections: ulimit -n 65536"},
      {"limit fsize", RLIMIT_FSIZE, RLIM_INFINITY,
       "limits checkpoints and memory that ranks share, too: ulimit -f unlimited"},
      {"limit as", RLIMIT_AS, RLIM_INFINITY,
       "ranks map much more address space than they use: ulimit -v unlimited"},
      {"limit memlock", RLIMIT_MEMLOCK, launch::gpu_count() > 0 ? RLIM_INFINITY : 0,
       "RDMA network cards need locked memory: ulimit -l unlimited"},
  };
  Findings findings;
  for (const auto& [subject, resource, enough, remedy] : limits) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0) {
      findings.push_back({FindingVerdict::kOk, subject, "unknown", ""});
      continue;
    }
    const auto value = static_cast<int64_t>(limit.rlim_cur);
    const std::string text = limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                             : resource == RLIMIT_NOFILE     ? std::to_string(value)
                                                             : human_bytes(value);
    const bool is_low = limit.rlim_cur < enough;
    findings.push_back(
        {is_low ? FindingVerdict::kWarn : FindingVerdict::kOk, subject, text, is_low ? remedy : ""});
  }
  return findings;
}

Finding check_shared_memory() {
  const char* remedy =
      "ranks of this host will use gloo, which is slower; allow memfd_create and /proc/PID/fd of "
      "one's own processes (a container's seccomp profile, hidepid)";
  try {
    constexpr int64_t kAddressSpace = int64_t{1} << 30;  // only one page of it is used
    const auto segment = comm::SharedSegment::create(kAddressSpace);
    const auto block = comm::SharedSegment::take(segment, 1, comm::SharedSegment::Part::kCommon);
    if (!block) return {FindingVerdict::kWarn, "shared memory", "no memory for a page of it", remedy};
    auto& word = *static_cast<std::atomic<uint64_t>*>(block->data());
    word = 0;
    const pid_t owner = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) ::_exit(write_as_other_process(*segment, owner, block->offset));
    int status = -1;
    if (child < 0 || ::waitpid(child, &status, 0) != child) {
      return {FindingVerdict::kFail, "shared memory",
              "cannot start a second process: " + util::errno_text(errno),
              "raise the limit on processes (ulimit -u, the container's pids limit)"};
    }
    if (status != 0 || word != segment->sign()) {
      return {FindingVerdict::kWarn, "shared memory",
              "a second process could not open the memory through /proc", remedy};
    }
    return {FindingVerdict::kOk, "shared memory", "a second process wrote to memory of this process (memfd)",
            ""};
  } catch (const std::exception& error) {
    return {FindingVerdict::kWarn, "shared memory", error.what(), remedy};
  }
}

}  // namespace fsdp::doctor
