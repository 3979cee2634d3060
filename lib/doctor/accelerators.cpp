#include "launch/accelerators.h"

#include "cli/version.h"
#include "doctor/checks.h"
#include "util/error.h"
#include "util/system_files.h"

namespace fsdp::doctor {

using util::concat;

Findings check_accelerators(const std::filesystem::path& root) {
  const int count = launch::gpu_count();
  const std::string driver =
      util::line_value(root / "proc/driver/nvidia/version", "NVRM version").value_or("");
  const std::string trains = "training itself runs on the CPU in this version";
  Findings findings;
  if (count == 0) {
    findings.push_back({Verdict::kOk, "gpu", concat("no NVIDIA device is visible; ", trains), ""});
  } else {
    findings.push_back({Verdict::kOk, "gpu", concat(count, " NVIDIA devices; ", trains), ""});
  }
  findings.push_back({Verdict::kOk, "gpu driver", driver.empty() ? "none is loaded" : driver, ""});
  if (count > 0 && driver.empty()) {
    findings.back().verdict = Verdict::kWarn;
    findings.back().remedy = "there are devices without their driver: load the module nvidia";
  }
  findings.push_back({Verdict::kOk, "nccl",
                      cli::nccl_version().empty() ? "this build has none: libtorch is that for the CPU"
                                                  : cli::nccl_version(),
                      ""});
  return findings;
}

}  // namespace fsdp::doctor
