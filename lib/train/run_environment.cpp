#include "train/run_environment.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>

#include "util/system.h"
#include "util/text.h"
#include "util/version.h"

namespace fsdp::train {
namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

nlohmann::ordered_json run_environment(const comm::Communicator& communicator, const PeakRate& peak) {
  return {{"fsdp", util::version()},
          {"libtorch", TORCH_VERSION},
          {"started", utc_now()},
          {"ranks", communicator.world_size()},
          {"communication", communicator.backend_name()},
          {"host", util::host_name()},
          {"cpu", util::line_value("/proc/cpuinfo", "model name").value_or("unknown")},
          {"cpu_instructions", at::get_cpu_capability()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads_a_rank", at::get_num_threads()},
          {"memory", util::human_bytes(::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE))},
          {"peak_tflops_a_rank", peak.flops_per_second / 1e12},
          {"peak_tflops_source", peak.source}};
}

}  // namespace fsdp::train
