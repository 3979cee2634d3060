#pragma once

// Collectives of ranks on several hosts with several ranks each, complete at the call: through shared memory
// inside a host, over gloo (TCP) or MPI between hosts. A rank exchanges data with the ranks of its host and
// with its counterparts, which have the same local index on the other hosts. An all-gather of parts of n
// elements, or a reduce-scatter into them, sends (H - 1) * n elements per rank over the network with H hosts.
//
//   all_gather      parts go straight into the outputs of the counterparts, then from there inside each host
//   reduce_scatter  each counterpart receives its host's part of the local sum, and adds up what it receives
//                   (coded_reduce_scatter() codes that part for the network only)
//   all_reduce      reduce-scatter inside the host, all-reduce of a piece between hosts, all-gather inside
//   broadcast       down a tree of the hosts, by the root and its counterparts; then inside each host
//   shift           to the next place of the host, where consecutive ranks are, and to the next host
//
// Sums are added in rank order inside each host, then by host: the same bits on all ranks and in every run,
// though not those of other backends. bfloat16 and float16 stay float32 between the stages and are rounded
// once. When a rank is lost, late or in another collective, every rank fails, and the error names the first
// to notice.

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
