#pragma once

// Chooses the communicator that connects a group of the run's ranks by the hosts that they are on.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/api/group_failure.h"
#include "comm/gloo/gloo_place.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/shm/host_ranks.h"

namespace fsdp::comm {

/// The connections of the run that groups are made from.
struct RunConnections {
  std::shared_ptr<HostRanks> host;
  GlooPlace gloo;                   ///< if `mpi` is set, only its store and time-out are used
  std::shared_ptr<MpiGroup> mpi{};  ///< group of all ranks, used between hosts in place of gloo; may be null
};

/// Connects a group of the run's ranks: through shared memory if all are on one host, hierarchically if they
/// are distributed evenly over several hosts (hierarchical_communicator.h), else over gloo or MPI. Groups of
/// this group are connected likewise. Collective over the group; `key` must be unique to it in the run.
std::unique_ptr<Communicator> connect_group(const RunConnections& connections, GroupIdentity identity,
                                            const std::string& key);

/// `over_network`, which connects the ranks of `identity`, with groups from connect_group().
std::unique_ptr<Communicator> with_groups_by_host(std::unique_ptr<Communicator> over_network,
                                                  const RunConnections& connections, GroupIdentity identity,
                                                  const std::string& key);

/// Makes the groups of a group, each with a key of its own.
class Subgroups {
 public:
  /// `key`: that of the group itself.
  Subgroups(RunConnections connections, std::string key)
      : connections_(std::move(connections)), keys_(std::move(key)) {}

  /// Collective over the ranks, which are numbered as in `of`.
  std::shared_ptr<Communicator> connect(const GroupIdentity& of, const std::string& name,
                                        const std::vector<int>& ranks);

 private:
  const RunConnections connections_;
  SubgroupKeys keys_;
};

}  // namespace fsdp::comm
