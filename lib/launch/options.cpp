#include "launch/options.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "util/error.h"

namespace fsdp::launch {
namespace {

using util::ErrorKind;
using util::fail;

void check_seconds(const char* option, double seconds, double least) {
  constexpr double kLongestSeconds = 1e6;
  if (std::isfinite(seconds) && seconds >= least && seconds <= kLongestSeconds) return;
  fail(ErrorKind::kUsage, "expected ", option, " in seconds from ", least, " to 1000000, found ", seconds);
}

void check_port(const char* option, int port) {
  if (port >= 0 && port <= 65535) return;
  fail(ErrorKind::kUsage, "expected ", option, " from 1 to 65535, or 0 for a free one, found ", port);
}

void check_local_ranks(const char* option, const std::set<int>& ranks, int workers) {
  if (ranks.empty() || (*ranks.begin() >= 0 && *ranks.rbegin() < workers)) return;
  const int wrong = *ranks.begin() < 0 ? *ranks.begin() : *ranks.rbegin();
  fail(ErrorKind::kUsage, "expected ", option, " to name local ranks from 0 to ", workers - 1,
       " with --nproc-per-node ", workers, ", found ", wrong);
}

std::set<int> ranks_of(const StreamChoice& choice) {
  std::set<int> ranks;
  for (const auto& [rank, streams] : choice.of_local_rank) ranks.insert(rank);
  return ranks;
}

void check_nodes(const LaunchOptions& options) {
  const auto& [least, most] = options.nnodes;
  if (least < 1 || most < least) {
    fail(ErrorKind::kUsage, "expected --nnodes N or MIN:MAX with 1 <= MIN <= MAX, found ", least, ":", most);
  }
  const RendezvousOptions& rendezvous = options.rendezvous;
  const bool is_static = rendezvous.backend == RendezvousOptions::Backend::kStatic;
  if (options.node_rank < 0 || options.node_rank >= most) {
    fail(ErrorKind::kUsage, "expected --node-rank from 0 to ", most - 1, " with --nnodes ", most, ", found ",
         options.node_rank);
  }
  if (!options.is_multi_node()) return;
  if (is_static && least != most) {
    fail(ErrorKind::kUsage, "--nnodes ", least, ":", most,
         " lets nodes come and go, which --rdzv-backend static cannot; use --rdzv-backend c10d");
  }
  if (rendezvous.host.empty()) {
    fail(ErrorKind::kUsage, "expected --rdzv-endpoint HOST[:PORT] with --nnodes ", most,
         " and --rdzv-backend c10d: the address of the node where all nodes meet");
  }
  if (rendezvous.port < 1 || rendezvous.port > 65535) {
    fail(ErrorKind::kUsage, "expected a port from 1 to 65535 in ",
         is_static ? "--master-port" : "--rdzv-endpoint", " with --nnodes ", most, ", found ",
         rendezvous.port, ": nodes must know it beforehand");
  }
}

}  // namespace

int StreamChoice::of(int local_rank) const {
  const auto own = of_local_rank.find(local_rank);
  return own == of_local_rank.end() ? of_all : own->second;
}

int available_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // The call fails on machines with more cores than cpu_set_t has bits.
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void validate(const LaunchOptions& options) {
  const int workers = options.nproc_per_node;
  if (workers < 1) fail(ErrorKind::kUsage, "expected --nproc-per-node of at least 1, found ", workers);
  check_nodes(options);
  if (options.master_addr.empty()) {
    fail(ErrorKind::kUsage, "expected --master-addr as a host name or address, found nothing");
  }
  check_port("--master-port", options.master_port);
  if (options.max_restarts < 0) {
    fail(ErrorKind::kUsage, "expected --max-restarts of at least 0, found ", options.max_restarts);
  }
  constexpr double kShortestIntervalSeconds = 0.001;
  check_seconds("--monitor-interval", options.monitor_interval_seconds, kShortestIntervalSeconds);
  check_seconds("--shutdown-timeout", options.shutdown_timeout_seconds, 0);
  check_seconds("join_timeout of --rdzv-conf", options.rendezvous.join_timeout_seconds, 0);
  check_seconds("last_call_timeout of --rdzv-conf", options.rendezvous.last_call_timeout_seconds, 0);
  check_seconds("keep_alive_interval of --rdzv-conf", options.rendezvous.keep_alive_interval_seconds, 0);
  if (options.rendezvous.keep_alive_max_attempt < 1) {
    fail(ErrorKind::kUsage, "expected keep_alive_max_attempt of --rdzv-conf of at least 1, found ",
         options.rendezvous.keep_alive_max_attempt);
  }
  check_local_ranks("--local-ranks-filter", options.local_ranks_filter, workers);
  check_local_ranks("--redirects", ranks_of(options.redirects), workers);
  check_local_ranks("--tee", ranks_of(options.tee), workers);
  if (options.program.empty() || options.program.front().empty()) {
    fail(ErrorKind::kUsage,
         "expected a program to start, found none: write it after the options, as in "
         "fsdp-launch --nproc-per-node 2 -- PROGRAM ARGUMENTS");
  }
}

}  // namespace fsdp::launch
