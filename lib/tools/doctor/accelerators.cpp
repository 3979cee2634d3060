#include <algorithm>
#include <utility>
#include <vector>

#include "base/cli/page.h"
#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "model/kernels/float8.h"
#include "tools/doctor/checks.h"
#include "tools/launch/node_hardware.h"

namespace fsdp::doctor {
namespace {

/// "8 x NVIDIA H100 80GB HBM3 (79.2 GiB, compute capability 9.0)".
std::string devices_text(const std::vector<util::CudaDevice>& devices) {
  std::vector<std::pair<std::string, int>> kinds;
  for (const util::CudaDevice& device : devices) {
    const std::string kind =
        concat(device.name, " (", util::fixed(static_cast<double>(device.memory_bytes) / (1 << 30), 1),
               " GiB, compute capability ", device.capability, ")");
    const auto known =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& other) { return other.first == kind; });
    if (known == kinds.end()) {
      kinds.emplace_back(kind, 1);
    } else {
      ++known->second;
    }
  }
  std::vector<std::string> texts;
  for (const auto& [kind, count] : kinds) texts.push_back(concat(count, " x ", kind));
  return util::join(texts, ", ");
}

Finding devices_finding() {
  const util::CudaStatus& status = util::cuda_status();
  if (status.devices > 0) return {FindingVerdict::kOk, "gpu", devices_text(usable_gpus()), ""};
  const int visible = launch::gpu_count();
  if (util::built_with_cuda()) return {FindingVerdict::kWarn, "gpu", status.obstacle, status.remedy};
  if (visible == 0) return {FindingVerdict::kOk, "gpu", "no NVIDIA device is visible", ""};
  return {FindingVerdict::kWarn, "gpu", concat(visible, " NVIDIA devices, and ", status.obstacle),
          status.remedy};
}

constexpr const char* kFloat8Gpus = "a GPU of compute capability 8.9, 9.0 or later";

}  // namespace

std::vector<util::CudaDevice> usable_gpus() {
  std::vector<util::CudaDevice> gpus;
  for (int index = 0; index < util::cuda_status().devices; ++index) gpus.push_back(util::cuda_device(index));
  return gpus;
}

Findings check_float8(const config::Config& config, const std::vector<util::CudaDevice>& gpus) {
  if (config.training.float8 == config::Float8Recipe::kNone) return {};
  Finding finding{FindingVerdict::kOk, "training.float8", config.training.float8.name(), ""};
  const auto unfit = std::find_if(gpus.begin(), gpus.end(), [](const util::CudaDevice& gpu) {
    return !kernels::has_float8_units(gpu.capability);
  });
  if (gpus.empty() && config.training.device == config::DeviceChoice::kCuda) {
    finding.verdict = FindingVerdict::kFail;
    finding.text += concat(" with training.device = cuda, and ", util::cuda_status().obstacle);
    finding.remedy = concat("train on ", kFloat8Gpus, "; ", util::cuda_status().remedy);
  } else if (gpus.empty() || config.training.device == config::DeviceChoice::kCpu) {
    finding.verdict = FindingVerdict::kWarn;
    finding.text += " on the CPU: the same numbers as on a GPU, for tests, and slower than bfloat16";
    finding.remedy = concat("leave it out, or train on ", kFloat8Gpus);
  } else if (unfit != gpus.end()) {
    finding.verdict = FindingVerdict::kFail;
    finding.text += concat(", and ", unfit->name, ", of compute capability ", unfit->capability,
                           ", has no matrix units for 8-bit floating point");
    finding.remedy =
        concat("leave it out, or train on ", kFloat8Gpus, " (CUDA_VISIBLE_DEVICES chooses among several)");
  } else {
    finding.text += "; the GPUs have matrix units for 8-bit floating point";
  }
  return {finding};
}

Findings check_accelerators(const std::filesystem::path& root) {
  const std::string driver =
      util::line_value(root / "proc/driver/nvidia/version", "NVRM version").value_or("");
  Findings findings = {devices_finding(),
                       {FindingVerdict::kOk, "gpu driver", driver.empty() ? "none is loaded" : driver, ""}};
  if (launch::gpu_count() > 0 && driver.empty()) {
    findings.back().verdict = FindingVerdict::kWarn;
    findings.back().remedy = "the devices have no driver: load the module nvidia";
  }
  findings.push_back({FindingVerdict::kOk, "nccl",
                      cli::nccl_version().empty() ? "none: this build uses the CPU flavour of libtorch"
                                                  : cli::nccl_version(),
                      ""});
  return findings;
}

}  // namespace fsdp::doctor
