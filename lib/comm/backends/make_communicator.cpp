#include "comm/backends/make_communicator.h"

#include <string>
#include <utility>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "comm/api/run_store.h"
#include "comm/api/stream_communicator.h"
#include "comm/backends/connect_group.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/nccl/nccl_communicator.h"

namespace fsdp::comm {
namespace {

/// Ends the run because the requested backend is not possible.
[[noreturn]] void refuse_backend(RunStore& store, const LaunchEnvironment& environment, Backend backend,
                                 const std::string& expected, const std::string& found) {
  leave_store(store, environment);
  util::fail(util::ErrorKind::kUsage, "comm.backend = \"", util::name_of(backend), "\" requires ", expected,
             ", but ", found, "; set it to ", is_over_mpi(backend) ? "mpi" : "auto or gloo");
}

std::unique_ptr<Communicator> connect(const LaunchEnvironment& environment, const CommOptions& options,
                                      const HostRanks::Options& host, RunStore store) {
  if (options.backend == Backend::kGloo)
    return make_gloo_communicator(environment, options, std::move(store));
  if (options.backend == Backend::kMpi)
    return make_mpi_communicator({&MpiRun::get(), std::move(store), options.timeout()});
  HostRanks::Meeting meeting = HostRanks::meet(environment, store, host);
  if (options.backend == Backend::kShm && !(meeting.ranks && meeting.apart.empty())) {
    refuse_backend(store, environment, options.backend, "processes that can share memory",
                   meeting.apart.empty() ? meeting.obstacle : meeting.apart);
  }
  GroupIdentity identity = run_identity(environment);
  const HostLayout layout =
      meeting.ranks ? host_layout(meeting.ranks->hosts(), identity.ranks) : HostLayout{};
  const std::string obstacle = meeting.ranks ? layout.odd_one() : meeting.obstacle;
  const bool over_mpi = options.backend == Backend::kHierarchicalMpi;
  if ((options.backend == Backend::kHierarchical || over_mpi) && !obstacle.empty()) {
    refuse_backend(store, environment, options.backend,
                   "several hosts with the same number of processes, 2 or more", obstacle);
  }
  if (meeting.ranks && (obstacle.empty() || layout.hosts() == 1)) {
    GlooPlace gloo;
    std::shared_ptr<MpiGroup> mpi;
    if (over_mpi) {
      mpi = make_mpi_world({&MpiRun::get(), store, options.timeout()});
      gloo.store = std::move(store);
    } else if (layout.hosts() > 1) {
      gloo = gloo_place(environment, options, std::move(store));
    }
    gloo.timeout = options.timeout();
    return connect_group({.host = std::move(meeting.ranks), .gloo = std::move(gloo), .mpi = std::move(mpi)},
                         std::move(identity), "run");
  }
  const bool shares_hosts = layout.shares_hosts();  // unevenly
  if (environment.rank == 0) {
    util::log_info(util::concat("processes communicate over gloo, ",
                                shares_hosts ? "and in groups on one host through" : "not through",
                                " shared memory: ", obstacle));
  }
  std::unique_ptr<Communicator> over_gloo = make_gloo_communicator(environment, options, store);
  if (!shares_hosts) return over_gloo;
  return with_groups_by_host(
      std::move(over_gloo),
      {.host = std::move(meeting.ranks), .gloo = gloo_place(environment, options, std::move(store))},
      std::move(identity), "run");
}

/// For tensors in host memory.
std::shared_ptr<Communicator> host_communicator(const LaunchEnvironment& environment,
                                                const CommOptions& options,
                                                std::shared_ptr<Activity> activity,
                                                const HostRanks::Options& host, RunStore store) {
  std::shared_ptr<Communicator> communicator = connect(environment, options, host, std::move(store));
  if (activity) communicator = make_activity_communicator(std::move(communicator), std::move(activity));
  return make_queued_communicator(std::move(communicator));
}

/// For tensors on the rank's device: NCCL, or through host memory.
std::shared_ptr<Communicator> device_collectives(Backend backend, const NcclPlace& place, at::Device device,
                                                 const std::shared_ptr<Communicator>& host) {
  const auto through_host = [&] { return make_staged_communicator(device, host); };
  if (!device.is_cuda() || (backend != Backend::kAuto && backend != Backend::kNccl)) return through_host();
  const std::string mine = HostIdentity::read().boot_id + " " + util::cuda_device(place.device).bus_id;
  const std::string obstacle = shared_gpu(all_gather_text(*host, mine, {.unit = "GPUs of the ranks"}));
  if (obstacle.empty()) return make_nccl_communicator(place);
  if (backend == Backend::kNccl) {
    throw AgreedError(util::ErrorKind::kUsage,
                      util::concat("comm.backend = \"nccl\" requires a GPU of its own for each rank, but ",
                                   obstacle, "; start fewer processes per host, or set it to auto"));
  }
  if (host->rank() == 0) {
    util::log_warning(util::concat("processes exchange GPU tensors through host memory, which is slow: ",
                                   obstacle, ", but NCCL needs one for each rank"));
  }
  return through_host();
}

}  // namespace

LaunchEnvironment launch_environment(const CommOptions& options) {
  return is_over_mpi(options.backend) ? MpiRun::get().environment() : read_launch_environment();
}

std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& given, const CommOptions& options,
                                                std::shared_ptr<Activity> activity,
                                                const HostRanks::Options& host, at::Device device) {
  const bool over_mpi = is_over_mpi(options.backend);
  const LaunchEnvironment environment = over_mpi ? MpiRun::get().environment() : given;
  if (options.backend == Backend::kNccl && !device.is_cuda()) {
    util::fail(util::ErrorKind::kUsage, "comm.backend = \"nccl\" requires ranks on GPUs, but they are on ",
               device.str(), "; set training.device to cuda, or comm.backend to auto");
  }
  if (environment.world_size == 1) {
    auto alone = std::make_shared<SingleCommunicator>();
    if (device.is_cpu()) return alone;
    return make_device_communicator({device, alone, alone});
  }
  RunStore store =
      over_mpi ? MpiRun::get().store(options.timeout()) : join_run_store(environment, options.timeout());
  CommOptions on_host = options;
  if (options.backend == Backend::kNccl) on_host.backend = Backend::kAuto;
  std::shared_ptr<Communicator> communicator = host_communicator(environment, on_host, activity, host, store);
  if (device.is_cpu()) return communicator;
  const NcclPlace place{.store = std::move(store),
                        .identity = run_identity(environment),
                        .device = device.index(),
                        .timeout = options.timeout(),
                        .activity = std::move(activity)};
  std::shared_ptr<Communicator> on_device = device_collectives(options.backend, place, device, communicator);
  return make_device_communicator({device, std::move(communicator), std::move(on_device)});
}

}  // namespace fsdp::comm
