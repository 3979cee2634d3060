#pragma once

// Cost: the time of a collective for a rank, by backend, when all ranks of its group have issued it: bytes
// received on each level, time of cores, and delays. Modelled on the backends (see the headers of lib/comm):
//
//   shm           an all-gather copies the rank's own part into common memory; a reduce-scatter reads the
//                 rank's part of all tensors; an all-reduce reduces a share for all and copies the others'
//   gloo          direct sends, of a reduce-scatter then sums; all-reduce in a ring
//   mpi           direct sends
//   hierarchical  counterparts on the hosts exchange, beside shared memory inside the hosts
//   nccl          rings, and trees for all-reduces: the fastest protocol by NCCL's own model of latency and
//                 bandwidth (src/graph/tuning.cc)
//
// W ranks, g of them on each host, H = W / g hosts, payload n: in an all-gather or a reduce-scatter a rank
// receives (W - 1) n; with several GPUs on a host, (W - g) n / g of it through its own network port.

#include <vector>

#include "comm/options/options.h"
#include "tools/simulate/network_table.h"

namespace fsdp::simulate {

/// A part of a collective: first the delay, then all the rest at once.
struct Stage {
  double delay_seconds = 0;
  double delay_beside_compute = 0;  ///< further delay if the ranks compute when the stage begins
  double inside_bytes = 0, between_bytes = 0, slice_bytes = 0;  ///< bytes that the rank receives
  double core_seconds = 0;                                      ///< time of one core of the rank

  double bytes_at(Level level) const;
};
/// Stages of a collective, one after another.
using Cost = std::vector<Stage>;

/// The ranks of a collective.
struct RankGroup {
  int ranks = 1;
  int ranks_of_host = 1;  ///< number of the ranks on each host
  bool is_between_slices = false;

  int hosts() const { return (ranks + ranks_of_host - 1) / ranks_of_host; }
};

enum class CollectiveKind { kAllGather, kReduceScatter, kAllReduce, kExchange };

struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllGather;
  /// This rank's payload, as in comm/events/trace_event.h: its shard; the whole tensor of an all-reduce; the
  /// bytes received in an exchange.
  double bytes = 0;
  RankGroup group = {};
  /// The payload in memory, if it is coded on its links; else 0.
  double uncoded_bytes = 0;

  bool is_coded() const { return uncoded_bytes > 0; }
  double memory_bytes() const { return is_coded() ? uncoded_bytes : bytes; }
};

/// Requires: `backend` is not kAuto.
Cost cost_of(const CollectiveCall& call, comm::Backend backend, const NetworkTable& network);

/// Bytes that a rank of the group receives from other hosts, on average over the ranks of its host.
double bytes_from_other_hosts(const CollectiveCall& call, comm::Backend backend);

/// Seconds of a stage without its delay, when nothing else runs. `cores`: cores that the rank can use; 0:
/// their time does not count.
double transfer_seconds(const Stage& stage, const NetworkTable& network, double cores);
/// Seconds of the whole collective, when nothing else runs.
double seconds_alone(const Cost& cost, const NetworkTable& network, double cores);

}  // namespace fsdp::simulate
