#include <sys/resource.h>

#include <algorithm>

#include "doctor/checks.h"
#include "doctor/control_group.h"
#include "launch/node_hardware.h"
#include "util/error.h"
#include "util/system_files.h"
#include "util/text.h"

namespace fsdp::doctor {
namespace {

using util::concat;
using util::human_bytes;

struct Limit {
  bool is_set = false;
  rlim_t value = 0;
  std::string text = "unlimited";
};

Limit limit_of(decltype(RLIMIT_AS) resource, bool in_bytes) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {.is_set = false, .value = 0, .text = "unknown"};
  if (limit.rlim_cur == RLIM_INFINITY) return {};
  const auto value = static_cast<int64_t>(limit.rlim_cur);
  return {
      .is_set = true, .value = limit.rlim_cur, .text = in_bytes ? human_bytes(value) : std::to_string(value)};
}

}  // namespace

Findings check_memory(const std::filesystem::path& root) {
  constexpr int64_t kLittle = int64_t{1} << 30;
  const std::filesystem::path file = root / "proc/meminfo";
  const auto total = util::kilobytes(file, "MemTotal"), available = util::kilobytes(file, "MemAvailable");
  if (!total || !available)
    return {{Verdict::kWarn, "memory", file.string() + " does not say", "mount /proc"}};
  int64_t usable = *available;
  Finding finding{Verdict::kOk, "memory", "", ""};
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
    finding.verdict = Verdict::kWarn;
    finding.remedy =
        "little for a run: end other programs or raise the limit; fsdp-plan CONFIG says what a rank needs";
  }
  return {finding};
}

Findings check_limits() {
  const Limit files = limit_of(RLIMIT_NOFILE, false), size = limit_of(RLIMIT_FSIZE, true),
              locked = limit_of(RLIMIT_MEMLOCK, true), space = limit_of(RLIMIT_AS, true);
  constexpr rlim_t kFilesOfALargeRun = 1024;
  Findings findings;
  findings.push_back({Verdict::kOk, "limit nofile", files.text, ""});
  if (files.is_set && files.value < kFilesOfALargeRun) {
    findings.back().verdict = Verdict::kWarn;
    findings.back().remedy = "a run of many processes opens more files and connections: ulimit -n 65536";
  }
  findings.push_back({Verdict::kOk, "limit fsize", size.text, ""});
  if (size.is_set) {
    findings.back().verdict = Verdict::kWarn;
    findings.back().remedy =
        "no file may be larger, a checkpoint or memory that ranks share neither: ulimit -f unlimited";
  }
  findings.push_back({Verdict::kOk, "limit as", space.text, ""});
  if (space.is_set) {
    findings.back().verdict = Verdict::kWarn;
    findings.back().remedy = "ranks map much more address space than they use: ulimit -v unlimited";
  }
  findings.push_back({Verdict::kOk, "limit memlock", locked.text, ""});
  if (locked.is_set && launch::gpu_count() > 0) {
    findings.back().verdict = Verdict::kWarn;
    findings.back().remedy =
        "network cards that write to memory by themselves need it locked: ulimit -l unlimited";
  }
  return findings;
}

}  // namespace fsdp::doctor
