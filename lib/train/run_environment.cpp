#include "train/run_environment.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "util/host_name.h"
#include "util/text.h"
#include "util/version.h"

namespace fsdp::train {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

nlohmann::ordered_json run_environment(const comm::Communicator& communicator) {
  return {{"fsdp", util::version()},
          {"libtorch", TORCH_VERSION},
          {"started", utc_now()},
          {"ranks", communicator.world_size()},
          {"communication", communicator.backend_name()},
          {"host", util::host_name()},
          {"cpu", cpu_model()},
          {"cpu_instructions", at::get_cpu_capability()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads_a_rank", at::get_num_threads()},
          {"memory", util::human_bytes(::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE))}};
}

}  // namespace fsdp::train
