#pragma once

// Collectives of ranks on several hosts with several ranks each: through shared memory inside a host, over
// gloo (TCP) or MPI between hosts. They are complete at the call.
//
// With H hosts of L ranks each, a rank exchanges data with the other ranks of its host and with its
// counterparts, the ranks with the same local index on the other hosts; the L sets of counterparts use the
// network concurrently. An all-gather of parts of n elements, or a reduce-scatter into them, sends (H - 1) *
// n elements per rank over the network, 1 / L of the traffic of direct sends between all ranks.
//
//   all_gather      each part is sent to the counterparts, straight into their outputs; then, host by host as
//                   the parts arrive, an all-gather through shared memory.
//   reduce_scatter  for each host, the local sum of the part of this rank's counterpart there is sent to it;
//                   each rank adds up the sums that it receives.
//   all_reduce      a reduce-scatter inside the host, an all-reduce of this rank's piece between hosts, an
//                   all-gather inside the host; small tensors in one exchange.
//   broadcast       down a tree of the hosts, by the root and its counterparts; then inside each host.
//   shift           to the next place of the host, where consecutive ranks are, and to the next host.
//
// Sums are added in rank order inside each host, and the hosts' sums in the order of the hosts' first ranks:
// results have the same bits on all ranks and in every run. Sums of bfloat16 and float16 stay float32 between
// the two stages and are rounded once, as in the other backends; since the order of additions differs from
// theirs, the last bit may differ too.
//
// When a rank is lost, late or in another collective, every rank of the group fails; the error names the rank
// that was the first to see the failure (group_failure.h). Collectives that differ between hosts, not inside
// one, are noticed at the time-out.

#include <memory>
#include <string>

#include "comm/api/communicator.h"
#include "comm/backends/connect_group.h"

namespace fsdp::comm {

/// Connects ranks that are distributed evenly over several hosts (HostLayout::even()). Groups of the group
/// come from connect_group(). Collective over the group; `key` must be unique to it in the run. Buffers are
/// in shared memory.
std::unique_ptr<Communicator> make_hierarchical_communicator(const RunConnections& connections,
                                                             GroupIdentity identity, const std::string& key);

}  // namespace fsdp::comm
