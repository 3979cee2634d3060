#include "comm/make_communicator.h"

#include <set>
#include <string>

#include "comm/device_communicator.h"
#include "comm/gloo_communicator.h"
#include "comm/hierarchical_communicator.h"
#include "comm/host_layout.h"
#include "comm/queued_communicator.h"
#include "comm/run_store.h"
#include "comm/single_communicator.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::comm {
namespace {

/// Before the run ends for want of the backend that it asks for.
[[noreturn]] void refuse(RunStore& store, const LaunchEnvironment& environment, const std::string& expected,
                         const std::string& found) {
  leave_store(store, environment);
  util::fail(util::ErrorKind::kUsage, "comm.backend: expected ", expected, "; found that ", found,
             "; set it to auto or gloo");
}

std::unique_ptr<Communicator> connect(const LaunchEnvironment& environment, const CommOptions& options,
                                      const HostRanks::Options& host) {
  if (options.backend == "gloo") return make_gloo_communicator(environment, options);
  RunStore store = join_run_store(environment, options.timeout());
  HostRanks::Meeting meeting = HostRanks::meet(environment, store, host);
  if (options.backend == "shm" && !(meeting.ranks && meeting.apart.empty())) {
    refuse(store, environment, "processes that can share memory for \"shm\"",
           meeting.apart.empty() ? meeting.obstacle : meeting.apart);
  }
  GroupIdentity identity = run_identity(environment);
  const HostLayout layout =
      meeting.ranks ? host_layout(meeting.ranks->hosts(), identity.ranks) : HostLayout{};
  const std::string obstacle = meeting.ranks ? layout.odd_one() : meeting.obstacle;
  if (options.backend == "hierarchical" && !obstacle.empty()) {
    refuse(store, environment,
           "several hosts with the same number of processes, 2 or more, for \"hierarchical\"", obstacle);
  }
  if (meeting.ranks && (obstacle.empty() || layout.hosts() == 1)) {
    GlooPlace gloo;
    if (layout.hosts() > 1) gloo = gloo_place(environment, options, std::move(store));
    gloo.timeout = options.timeout();
    return connect_group({.host = std::move(meeting.ranks), .gloo = std::move(gloo)}, std::move(identity),
                         "run");
  }
  if (environment.rank == 0) {
    util::log_info(util::concat("processes talk over gloo, not through shared memory: ", obstacle));
  }
  return make_gloo_communicator(environment, options, std::move(store));
}

/// For tensors in host memory.
std::shared_ptr<Communicator> host_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity,
                                                const HostRanks::Options& host) {
  if (environment.world_size == 1) return std::make_shared<SingleCommunicator>();
  std::shared_ptr<Communicator> communicator = connect(environment, options, host);
  if (activity) communicator = make_noting_communicator(std::move(communicator), std::move(activity));
  return make_queued_communicator(std::move(communicator));
}

}  // namespace

std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity,
                                                const HostRanks::Options& host, at::Device device) {
  static const std::set<std::string> kBackends = {"auto", "shm", "gloo", "hierarchical"};
  if (!kBackends.contains(options.backend)) {
    util::fail(util::ErrorKind::kUsage, "comm.backend: expected auto, shm, gloo or hierarchical; found \"",
               options.backend, "\"");
  }
  std::shared_ptr<Communicator> communicator =
      host_communicator(environment, options, std::move(activity), host);
  if (device.is_cpu()) return communicator;
  std::shared_ptr<Communicator> on_device =
      communicator->world_size() == 1 ? communicator : make_staged_communicator(device, communicator);
  return make_device_communicator({device, std::move(communicator), std::move(on_device)});
}

}  // namespace fsdp::comm
