#include "launch/options.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <thread>

#include "util/error.h"

namespace fsdp::launch {
namespace {

using util::ErrorKind;
using util::fail;

std::optional<int> whole_number(const std::string& text) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

int available_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // The call fails on machines with more cores than cpu_set_t has bits.
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int workers_from_text(const std::string& text) {
  if (text == "auto" || text == "cpu") return available_cores();
  std::optional<int> workers = whole_number(text);
  if (!workers || *workers < 1) {
    fail(ErrorKind::kUsage,
         "expected --nproc-per-node as a whole number from 1, \"cpu\" or \"auto\", found \"", text, "\"");
  }
  return *workers;
}

int nodes_from_text(const std::string& text) {
  if (text == "1" || text == "1:1") return 1;
  fail(ErrorKind::kUsage, "expected --nnodes 1, found \"", text,
       "\": this launcher starts the processes of one node, so run with --nnodes 1");
}

void validate(const LaunchOptions& options) {
  if (options.nproc_per_node < 1) {
    fail(ErrorKind::kUsage, "expected --nproc-per-node of at least 1, found ", options.nproc_per_node);
  }
  if (options.nnodes != 1) nodes_from_text(std::to_string(options.nnodes));
  if (options.node_rank < 0 || options.node_rank >= options.nnodes) {
    fail(ErrorKind::kUsage, "expected --node-rank from 0 to ", options.nnodes - 1, " with --nnodes ",
         options.nnodes, ", found ", options.node_rank);
  }
  if (options.master_addr.empty()) {
    fail(ErrorKind::kUsage, "expected --master-addr as a host name or address, found nothing");
  }
  if (options.master_port < 0 || options.master_port > 65535) {
    fail(ErrorKind::kUsage, "expected --master-port from 1 to 65535, or 0 for a free one, found ",
         options.master_port);
  }
  constexpr double kLongestSeconds = 1e6;
  double seconds = options.shutdown_timeout_seconds;
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kLongestSeconds) {
    fail(ErrorKind::kUsage, "expected --shutdown-timeout in seconds from 0 to 1000000, found ", seconds);
  }
  if (options.program.empty() || options.program.front().empty()) {
    fail(ErrorKind::kUsage,
         "expected a program to start, found none: write it after the options, as in "
         "fsdp-launch --nproc-per-node 2 -- PROGRAM ARGUMENTS");
  }
}

}  // namespace fsdp::launch
