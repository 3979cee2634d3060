#pragma once

// The duration of a step on machines of a given speed, and how much of its communication is exposed: compute
// waits for it. The model is deliberately simple:
//   - A stage takes 2 FLOP per weight of its matrices and token in forward and 4 in backward; attention takes
//     4 * T * D per token in forward (T tokens in a row, width D, counting the half hidden by causality) and
//     twice that in backward; a recomputed stage runs forward twice. The optimizer takes time only where its
//     states are in host memory (UpdateTimes), and all else, such as norms, takes none.
//   - A rank computes `flops_per_second` without interruption, and kFloat8Speed times as fast in linear
//     layers that multiply in 8 bits (training.float8).
//   - Collectives wait and are waited for as the engine's schedule says (StepClock), without latency.

#include <vector>

#include "setup/config/config.h"
#include "shard/units/schedule.h"
#include "shard/units/unit_collectives.h"
#include "shard/units/unit_sizes.h"
#include "tools/plan/communication_streams.h"
#include "tools/plan/recorded_pass.h"
#include "tools/plan/unit_jobs.h"

namespace fsdp::plan {

/// Speed of products in 8 bits relative to bf16: that of the matrix units of every GPU with both (NVIDIA's
/// data sheets of H100, L40S and B200, without sparsity). Scaling and rounding are not included.
inline constexpr double kFloat8Speed = 2;

struct MachineSpeed {
  double flops_per_second = 150e12;  ///< rate of products in the type of compute
  double bytes_per_second = 50e9;
  double replica_bytes_per_second = 50e9;
  int64_t ranks_of_node = 0;            ///< 0: bytes_per_second holds between any two ranks
  double node_bytes_per_second = 0;     ///< between ranks of a node; 0: bytes_per_second
  double latency_seconds = 0;           ///< latency of each collective
  double host_bytes_per_second = 25e9;  ///< between the device and the memory of its host, each way
  /// Host memory that a rank may take for activations.
  double host_memory_bytes = 128.0 * (int64_t{1} << 30);
  /// Reads and writes of host memory by a rank's part of the host's cores; assumed.
  double host_memory_bytes_per_second = 50e9;
};

/// StepClock: when a step computes and communicates, in seconds. It reads the commands of a schedule; the
/// caller adds the compute between the schedule's events.
///
/// Compute is one stream, and so is the communication of each group (gather_queue() in
/// shard/units/group_sizes.h). A collective begins when the one before it on its stream has ended; compute
/// continues when the collectives that it waits for have ended. All-reduces over replicas follow the
/// reduce-scatter of their shard in a separate stream, over a link of their own; those of units that are not
/// cut share the stream of the gathers. With fsdp.reduce_scatter_group, reduce-scatters are a stream too. A
/// reduce-scatter that runs beside a gather shares the link with it: a separate group changes the order, not
/// the speed.
///
/// A rank receives the other W - 1 shards of a unit in an all-gather, and as much in a reduce-scatter, at
/// `bytes_per_second`. With g ranks per node (`ranks_of_node`) it receives all of them at the speed inside a
/// node, and the ranks of a node together receive those of the other nodes once, at g times
/// `bytes_per_second`; the slower counts. An all-reduce of b bytes over R replicas takes 2 (R - 1) / R * b at
/// `replica_bytes_per_second`; an all-gather or a reduce-scatter between slices takes as long as (slices - 1)
/// / slices of the slice's shard do there.
///
/// Copies of activations between the device and host memory are a stream with a link of its own.
///
/// The collectives of attention over mesh.context are a stream as well. They share the link of the gathers,
/// at the speed inside a node where a context group fits into one.
class StepClock final : public shard::CommandReader {
 public:
  /// The first two arguments must outlive the clock.
  StepClock(const Units& units, const MachineSpeed& speed, bool reduce_scatter_group = false);

  void read(const shard::Command& command) override;
  void compute(double seconds);

  using Job = CommunicationStreams::Job;
  /// Issues a collective inside a layer, among `ranks` ranks, in which this rank receives so many bytes.
  Job send(int64_t bytes, int ranks);
  /// Issues a copy between the device and host memory.
  Job copy(int64_t bytes);
  void wait_for(Job job);

  double computed() const { return computed_; }
  double communicated() const { return communicated_; }  ///< sum of all collectives
  double copied() const { return copied_; }              ///< sum of all copies
  double exposed() const { return exposed_; }            ///< time for which compute waited

 private:
  double seconds_of_shards(const shard::UnitSizes& unit, int64_t payload) const;
  double seconds_of(const shard::UnitSizes& unit, const shard::UnitCollective& collective) const;

  Job put_on(size_t stream, size_t link, double seconds, Job after = 0);
  const Units& units_;
  const MachineSpeed& speed_;
  const bool reduce_scatter_group_;
  std::vector<UnitJobs> jobs_;  ///< indexed by unit
  CommunicationStreams streams_;
  double computed_ = 0, communicated_ = 0, copied_ = 0, exposed_ = 0;
};

/// Seconds of the update of states in host memory: by the host, which reads and writes that memory, or by the
/// device (optimizer.offload = "stream"), to and from which it is copied at the same time.
struct UpdateTimes {
  double by_host = 0, by_device = 0;
};
/// Times of units with fsdp.cpu_offload and, with optimizer.offload, of all; 0 on a CPU, for optimizers that
/// cannot be streamed, and where nothing is in host memory.
UpdateTimes update_times(const config::Config& config, const Units& units, const MachineSpeed& speed);

/// Seconds of one optimizer step.
struct TimePlan {
  double compute = 0;
  double communication = 0;    ///< sum of all collectives
  double copies = 0;           ///< sum of all copies between the device and host memory
  double exposed = 0;          ///< time for which compute waits for either
  double update = 0;           ///< of what is in host memory
  double exchange = 0;         ///< mean time for which steps wait for exchanges of local steps
  double flops = 0;            ///< operations of this rank, including recomputation
  double flops_in_float8 = 0;  ///< part of flops

  double step() const { return compute + exposed + update + exchange; }
};

/// `pass` must be the config's.
TimePlan plan_time(const config::Config& config, const Units& units, const MachineSpeed& speed,
                   const RecordedPass& pass);

}  // namespace fsdp::plan
