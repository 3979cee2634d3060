#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <vector>

#include "base/util/error.h"
#include "base/util/matrix_units.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "model/kernels/block_product.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/matmul.h"
#include "tools/doctor/checks.h"

namespace fsdp::doctor {
namespace {

/// The relevant instruction sets under their usual names.
std::string instructions() {
  const std::vector<std::pair<std::string, std::string>> known = {{"avx2", "AVX2"},
                                                                  {"fma", "FMA"},
                                                                  {"avx512f", "AVX-512"},
                                                                  {"avx512_bf16", "AVX-512 BF16"},
                                                                  {"amx_bf16", "AMX BF16"}};
  std::istringstream flags(util::line_value("/proc/cpuinfo", "flags").value_or(""));
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    for (const auto& [name, text] : known) {
      if (flag == name) found.push_back(text);
    }
  }
  return found.empty() ? "none of AVX2, AVX-512 and their bf16 kinds" : util::join(found, ", ");
}

Finding check_instructions() {
  Finding finding{FindingVerdict::kOk, "cpu", "", ""};
  finding.text = concat(util::line_value("/proc/cpuinfo", "model name").value_or("of unknown model"), "; ",
                        instructions());
  if (util::announces_tiles_without_palettes(util::cpu_identity())) {
    finding.text +=
        concat("; AMX is reported without its tiles, as by some virtual machines: oneDNN may not use it, ",
               util::has_matrix_unit() ? "the program's products (training.matmul = amx) passed a trial"
                                       : "and the program's products failed a trial");
  }
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) {
    finding.verdict = FindingVerdict::kWarn;
    finding.remedy = "without AVX2 everything computes slowly; in a virtual machine, expose the host's CPU";
  }
#endif
  return finding;
}

Finding check_kernels(const std::string& matmul) {
  if (matmul == "amx" && !util::has_matrix_unit()) {
    return {FindingVerdict::kFail, "kernels",
            "training.matmul = amx, and no matrix unit (AMX in bf16) that a process may use",
            "set training.matmul to auto"};
  }
  return {FindingVerdict::kOk, "kernels",
          concat("loops of ", kernels::cpu::loops(kernels::cpu::Element::kFloat).name, "; products by ",
                 kernels::name_of(kernels::matmul_by_name(matmul)), " (training.matmul = ", matmul,
                 "); products in blocks: ",
                 !kernels::has_small_products(at::kFloat) ? "none"
                 : kernels::widens_bf16()                 ? "fp32, and bf16 by instructions of fp32"
                                                          : "fp32 and bf16"),
          ""};
}

Finding check_cores() {
  const int allowed = allowed_cpus();
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  Finding finding{FindingVerdict::kOk, "cores",
                  concat("may run on ", allowed, " of ", online, " logical CPUs"), ""};
  if (const auto quota = util::cpu_time_quota()) {
    finding.text += concat("; the control group grants the time of ", util::fixed(*quota, 1));
    if (*quota < allowed) {
      finding.verdict = FindingVerdict::kWarn;
      finding.remedy =
          concat("start at most ", std::max(1, static_cast<int>(*quota)),
                 " processes and threads in total, or raise the container's limit: more would be "
                 "throttled");
    }
  }
  return finding;
}

Finding check_threads() {
  const char* given = std::getenv("OMP_NUM_THREADS");
  const int threads = util::default_compute_threads();
  Finding finding{FindingVerdict::kOk, "OMP_NUM_THREADS", "", ""};
  finding.text = concat(given ? given : "not set", "; a process started like this one computes with ",
                        threads, threads == 1 ? " thread" : " threads");
  if (!given) {
    finding.text += ", under fsdp-launch with its share of the cores";
  } else if (std::atoi(given) < 1) {
    finding.verdict = FindingVerdict::kWarn;
    finding.remedy = "expected a number of at least 1: set one, or unset it";
  } else if (std::atoi(given) > allowed_cpus()) {
    finding.verdict = FindingVerdict::kWarn;
    finding.remedy =
        concat("more threads than the ", allowed_cpus(), " CPUs that the process may use: unset it");
  }
  return finding;
}

}  // namespace

int allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

Findings check_processors(const std::string& matmul) {
  return {check_instructions(), check_kernels(matmul), check_cores(), check_threads()};
}

}  // namespace fsdp::doctor
