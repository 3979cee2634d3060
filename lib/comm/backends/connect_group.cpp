#include "comm/backends/connect_group.h"

#include <chrono>
#include <utility>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "comm/api/forwarding_communicator.h"
#include "comm/backends/hierarchical_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/shm/shm_communicator.h"

namespace fsdp::comm {
namespace {

/// Of hosts with different numbers of ranks: its groups may be on one host, or evenly on several.
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

Subgroups::Subgroups(RunConnections connections, std::string key)
    : connections_(std::move(connections)), key_(std::move(key)) {}

std::shared_ptr<Communicator> Subgroups::connect(const GroupIdentity& of, const std::string& name,
                                                 const std::vector<int>& ranks) {
  // Several groups may have this name, of other ranks or of the same.
  GroupIdentity identity = of.subgroup(name, ranks);
  std::string key = util::concat(key_, "/", name, "/", identity.key());
  key += util::concat("/", made_[key]++);
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
  auto group =
      ShmGroup::connect(connections.host, std::move(identity), timeout_seconds, util::hash_of(0, key));
  return make_shm_communicator(std::move(group), key);
}

std::unique_ptr<Communicator> with_groups_by_host(std::unique_ptr<Communicator> over_network,
                                                  const RunConnections& connections, GroupIdentity identity,
                                                  const std::string& key) {
  return std::make_unique<UnevenCommunicator>(std::move(over_network), std::move(identity),
                                              Subgroups(connections, key));
}

}  // namespace fsdp::comm
