#include "comm/backends/connect_group.h"

#include <chrono>

#include "comm/api/forwarding_communicator.h"
#include "comm/backends/hierarchical_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/shm/shm_communicator.h"

namespace fsdp::comm {
namespace {

/// Ranks of hosts with different numbers of ranks. Groups of this group may be on one host, or distributed
/// evenly over several.
class UnevenCommunicator final : public ForwardingCommunicator {
 public:
  UnevenCommunicator(std::shared_ptr<Communicator> over_network, GroupIdentity identity, Subgroups groups)
      : ForwardingCommunicator(std::move(over_network)),
        identity_(std::move(identity)),
        groups_(std::move(groups)) {}

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return groups_.connect(identity_, name, ranks);
  }

 private:
  const GroupIdentity identity_;
  Subgroups groups_;
};

}  // namespace

std::shared_ptr<Communicator> Subgroups::connect(const GroupIdentity& of, const std::string& name,
                                                 const std::vector<int>& ranks) {
  GroupIdentity identity = of.subgroup(name, ranks);
  const std::string key = keys_.next(name, identity);
  return connect_group(connections_, std::move(identity), key);
}

std::unique_ptr<Communicator> connect_group(const RunConnections& connections, GroupIdentity identity,
                                            const std::string& key) {
  const HostLayout layout = host_layout(connections.host->hosts(), identity.ranks);
  if (layout.even()) return make_hierarchical_communicator(connections, std::move(identity), key);
  if (layout.hosts() > 1) {
    auto over_network = connections.mpi ? make_mpi_group(*connections.mpi, identity, key)
                                        : make_gloo_group(connections.gloo, identity, key);
    if (!layout.shares_hosts()) return over_network;
    return with_groups_by_host(std::move(over_network), connections, std::move(identity), key);
  }
  const double timeout_seconds = std::chrono::duration<double>(connections.gloo.timeout).count();
  return make_shm_communicator(
      ShmGroup::connect(connections.host, std::move(identity), timeout_seconds, key));
}

std::unique_ptr<Communicator> with_groups_by_host(std::unique_ptr<Communicator> over_network,
                                                  const RunConnections& connections, GroupIdentity identity,
                                                  const std::string& key) {
  return std::make_unique<UnevenCommunicator>(std::move(over_network), std::move(identity),
                                              Subgroups(connections, key));
}

}  // namespace fsdp::comm
