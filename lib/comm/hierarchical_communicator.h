#pragma once

// Collectives of ranks on several hosts with several ranks each: through shared memory inside a host, over
// gloo (TCP) between hosts. They are complete at the call.
//
// With H hosts of L ranks each, a rank's exchange is with the other ranks of its host, and with those of its
// place on the other hosts; the L places use the network beside each other. An all-gather of parts of n
// elements, or a reduce-scatter into them, sends (H - 1) * n elements a rank over the network, an L-th of
// what crosses it when every rank sends to every other.
//
//   all_gather      each part goes to its place on the other hosts' ranks of this place, straight into the
//                   output; then, host by host as the parts come, an all-gather through shared memory.
//   reduce_scatter  host by host, the sum over this host's ranks of what that host's rank of this place is to
//                   have, which is sent there; each rank adds up what it gets.
//   all_reduce      a reduce-scatter inside the host, an all-reduce of this rank's piece between hosts, an
//                   all-gather inside the host; small tensors in one exchange.
//   broadcast       down a tree of the hosts, by the ranks of the root's place; then inside each host.
//
// Sums are added in rank order inside each host, and the hosts' sums in the order of the hosts' first ranks:
// all ranks get the same bits, and every run does. Sums of bfloat16 and float16 stay float32 between the two
// stages, and are rounded once, as in the other backends. Against them the order of additions differs, and so
// may the last bit.
//
// When a rank is lost, does not come in time or is in another collective, every rank of the group fails; the
// error says which rank was first to see what (failure_report.h). Collectives that differ between hosts, not
// inside one, are noticed when the time is up.

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/gloo_place.h"
#include "comm/group_identity.h"
#include "comm/host_ranks.h"

namespace fsdp::comm {

/// By what any ranks of the run can be connected.
struct RunConnections {
  std::shared_ptr<HostRanks> host;
  GlooPlace gloo;
};

/// Connects a group of the run's ranks, and is collective over them: by shared memory where all are on one
/// host, hierarchically where they are evenly on several (HostLayout::even()), else over gloo. `key` is the
/// group's alone in the run. Buffers of a hierarchical communicator lie in shared memory.
std::unique_ptr<Communicator> connect_group(const RunConnections& connections, GroupIdentity identity,
                                            const std::string& key);

}  // namespace fsdp::comm
