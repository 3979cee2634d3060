#pragma once

// What a collective of each backend costs a rank when all ranks of its group have come: the bytes that it receives
// on each level, the time of its cores, and what passes without either. As the backends do it (see the headers of
// lib/comm):
//
//   shm           an all-gather copies the rank's own part into memory that all share; a reduce-scatter reads the rank's
//                 part of all tensors; an all-reduce reduces a share for all and copies the others'. All by cores
//   gloo          direct sends, of a reduce-scatter then sums; all-reduce in a ring
//   mpi           direct sends
//   hierarchical  counterparts on the hosts exchange, beside shared memory inside the hosts
//   nccl          rings, and for all-reduces trees, by NCCL's own model of latency and bandwidth of its protocols
//                 (src/graph/tuning.cc), of which it takes the fastest
//
// W ranks, g of them on each host, H = W / g hosts, payload n: in an all-gather or a reduce-scatter a rank receives
// (W - 1) n; with several GPUs on a host, (W - g) n / g of them come over its own port to the network.

#include <cstdint>
#include <vector>

#include "comm/options/options.h"
#include "tools/simulate/network_table.h"

namespace fsdp::simulate {

/// A part of a collective: first the delay, then all the rest at once.
struct Stage {
  double delay_seconds = 0;
  double delay_beside_compute = 0;  ///< in addition, if the ranks compute when it begins
  double inside_bytes = 0, between_bytes = 0, slice_bytes = 0;  ///< that the rank receives
  double core_seconds = 0;                                      ///< of one core of the rank

  double bytes_at(Level level) const;
};
/// One after another.
using Cost = std::vector<Stage>;

/// The ranks of a collective.
struct Group {
  int ranks = 1;
  int ranks_of_host = 1;  ///< of these
  bool is_between_slices = false;

  int hosts() const { return (ranks + ranks_of_host - 1) / ranks_of_host; }
};

enum class CollectiveKind { kAllGather, kReduceScatter, kAllReduce, kExchange };

struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllGather;
  /// This rank's payload, as in comm/events/trace_event.h: its shard; the whole tensor of an all-reduce. Of an exchange,
  /// what it receives.
  double bytes = 0;
  Group group = {};
};

/// `backend` must not be kAuto.
Cost cost_of(const CollectiveCall& call, comm::Backend backend, const NetworkTable& network);

/// The seconds of a stage without its delay, when nothing else is under way. `cores`: that the rank can use; 0: those
/// are not counted.
double transfer_seconds(const Stage& stage, const NetworkTable& network, double cores);
/// Of the whole collective.
double seconds_alone(const Cost& cost, const NetworkTable& network, double cores);

}  // namespace fsdp::simulate
