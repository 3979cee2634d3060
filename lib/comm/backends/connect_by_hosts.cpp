// Connects a run over shared memory and the network, as far as the hosts of its ranks allow.

#include <memory>
#include <string>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "comm/api/connect.h"
#include "comm/backends/connect_group.h"
#include "comm/gloo/gloo_communicator.h"

namespace fsdp::comm {
namespace {

/// The ranks of a run and their hosts.
struct PlacedRun {
  explicit PlacedRun(RunToConnect& run) : identity(run_identity(run.environment)) {
    HostRanks::Meeting meeting = HostRanks::meet(run.environment, run.store, run.host);
    ranks = std::move(meeting.ranks);
    if (ranks) layout = host_layout(ranks->hosts(), identity.ranks);
    obstacle = ranks ? layout.odd_one() : meeting.obstacle;
  }

  std::shared_ptr<HostRanks> ranks;  ///< null if the ranks of any host cannot share memory
  GroupIdentity identity;
  HostLayout layout;
  std::string obstacle;  ///< why there is no hierarchy; empty: the ranks allow one
};

std::unique_ptr<Communicator> connect_on_hosts(PlacedRun placed, RunToConnect run) {
  RunConnections connections{.host = std::move(placed.ranks), .gloo = {.store = run.store}};
  if (is_over_mpi(run.options.backend)) {
    connections.mpi = make_mpi_world({&MpiRun::get(), std::move(run.store), run.options.timeout()});
  } else if (placed.layout.hosts() > 1) {
    connections.gloo = gloo_place(run.environment, run.options, std::move(run.store));
  }
  connections.gloo.timeout = run.options.timeout();
  return connect_group(connections, std::move(placed.identity), kRunKey);
}

}  // namespace

std::unique_ptr<Communicator> connect_hierarchical(RunToConnect run) {
  PlacedRun placed(run);
  if (!placed.obstacle.empty()) {
    refuse_backend(run, "several hosts with the same number of processes, 2 or more", placed.obstacle);
  }
  return connect_on_hosts(std::move(placed), std::move(run));
}

std::unique_ptr<Communicator> connect_by_hosts(RunToConnect run) {
  PlacedRun placed(run);
  if (placed.ranks && (placed.obstacle.empty() || placed.layout.hosts() == 1)) {
    return connect_on_hosts(std::move(placed), std::move(run));
  }
  const bool shares_hosts = placed.layout.shares_hosts();  // unevenly
  if (run.environment.rank == 0) {
    util::log_info(concat("processes communicate over gloo, ",
                          shares_hosts ? "and in groups on one host through" : "not through",
                          " shared memory: ", placed.obstacle));
  }
  std::unique_ptr<Communicator> over_gloo = make_gloo_communicator(run.environment, run.options, run.store);
  if (!shares_hosts) return over_gloo;
  return with_groups_by_host(std::move(over_gloo),
                             {.host = std::move(placed.ranks),
                              .gloo = gloo_place(run.environment, run.options, std::move(run.store))},
                             std::move(placed.identity), kRunKey);
}

}  // namespace fsdp::comm
