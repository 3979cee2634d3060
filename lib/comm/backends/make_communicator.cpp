#include "comm/backends/make_communicator.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "comm/api/connect.h"
#include "comm/api/run_store.h"
#include "comm/api/stream_communicator.h"
#include "comm/mpi/mpi_run.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/shm/host_ranks.h"

namespace fsdp::comm {
namespace {

#define FSDP_CONNECT_ROW(member, name, connect, ...) &connect,
/// How each backend connects, in the order of backends().
constexpr ConnectFunction* kConnect[] = {FSDP_BACKENDS(FSDP_CONNECT_ROW)};

/// Collectives of tensors in host memory.
std::shared_ptr<Communicator> host_communicator(RunToConnect run, std::shared_ptr<Activity> activity) {
  std::shared_ptr<Communicator> communicator =
      kConnect[static_cast<size_t>(run.options.backend)](std::move(run));
  if (activity) communicator = make_activity_communicator(std::move(communicator), std::move(activity));
  return make_queued_communicator(std::move(communicator));
}

/// This rank's host as NCCL sees it: NCCL refuses two ranks of one host that share a GPU, and connects
/// ranks of different hosts through the network.
std::string host_for_nccl() {
  const char* given = std::getenv("NCCL_HOSTID");
  return given != nullptr ? given : HostIdentity::read().boot_id;
}

/// Collectives of tensors on the rank's device: over NCCL, or through host memory.
std::shared_ptr<Communicator> device_collectives(const BackendRow& row, const NcclPlace& place,
                                                 at::Device device,
                                                 const std::shared_ptr<Communicator>& host) {
  const auto through_host = [&] { return make_staged_communicator(device, host); };
  const GpuTensors path = row.traits.on_gpus;
  if (!device.is_cuda() || path == GpuTensors::kThroughHostMemory) return through_host();
  const std::string mine = host_for_nccl() + " " + util::cuda_device(place.device).bus_id;
  const std::string obstacle = shared_gpu(all_gather_text(*host, mine, {.unit = "GPUs of the ranks"}));
  if (obstacle.empty()) return make_nccl_communicator(place);
  if (path == GpuTensors::kOverNccl) {
    throw AgreedError(ErrorKind::kUsage, concat("comm.backend = \"", row.name,
                                                "\" requires a GPU of its own for each rank, but ", obstacle,
                                                "; start fewer processes per host, set it to auto, or set "
                                                "NCCL_HOSTID to another value on each of these ranks"));
  }
  if (host->rank() == 0) {
    util::log_warning(concat("processes exchange GPU tensors through host memory, which is slow: ", obstacle,
                             ", but NCCL needs one, or another NCCL_HOSTID, for each rank"));
  }
  return through_host();
}

}  // namespace

LaunchEnvironment launch_environment(const CommOptions& options) {
  return is_over_mpi(options.backend) ? MpiRun::get().environment() : read_launch_environment();
}

std::shared_ptr<Communicator> make_communicator(const LaunchEnvironment& given, const CommOptions& options,
                                                std::shared_ptr<Activity> activity, const HostOptions& host,
                                                at::Device device) {
  const BackendRow& row = row_of(options.backend);
  const bool over_mpi = row.traits.over_mpi;
  const LaunchEnvironment environment = over_mpi ? MpiRun::get().environment() : given;
  if (row.traits.on_gpus == GpuTensors::kOverNccl && !device.is_cuda()) {
    util::fail(ErrorKind::kUsage, "comm.backend = \"", row.name,
               "\" requires ranks on GPUs, but they are on ", device.str(),
               "; set training.device to cuda, or comm.backend to auto");
  }
  if (environment.world_size == 1) {
    auto alone = std::make_shared<SingleCommunicator>();
    if (device.is_cpu()) return alone;
    return make_device_communicator({device, alone, alone});
  }
  RunStore store =
      over_mpi ? MpiRun::get().store(options.timeout()) : join_run_store(environment, options.timeout());
  std::shared_ptr<Communicator> communicator =
      host_communicator({environment, options, host, store}, activity);
  if (device.is_cpu()) return communicator;
  const NcclPlace place{.store = std::move(store),
                        .identity = run_identity(environment),
                        .device = device.index(),
                        .timeout = options.timeout(),
                        .activity = std::move(activity)};
  std::shared_ptr<Communicator> on_device = device_collectives(row, place, device, communicator);
  return make_device_communicator({device, std::move(communicator), std::move(on_device)});
}

}  // namespace fsdp::comm
