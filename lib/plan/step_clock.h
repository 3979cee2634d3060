#pragma once

// StepClock: when a step computes and communicates, in seconds. It reads the commands of a schedule
// (shard/schedule.h); whoever runs the schedule says how long is computed between its events.
//
// Compute and communication each are one stream. A collective begins when the one before it on its stream has
// ended, compute goes on when the collectives that it waits for have ended. All-reduces over replicas follow the
// reduce-scatter of their shard in a stream of their own; those of units that are not cut go with the gathers.
//
// A rank receives the other W - 1 shards of a unit in an all-gather, and as much in a reduce-scatter, at
// `bytes_per_second`. With g ranks a node (`ranks_of_node`) it receives all of them at the speed inside a node,
// and the g of a node together, at g times `bytes_per_second`, those of the other nodes once; the slower of the
// two counts. An all-reduce of b bytes over R replicas takes 2 (R - 1) / R * b at `replica_bytes_per_second`.

#include <vector>

#include "shard/schedule.h"
#include "shard/unit_sizes.h"

namespace fsdp::plan {

struct MachineSpeed {
  double flops_per_second = 150e12;  ///< of products in the type of compute
  double bytes_per_second = 50e9;
  double replica_bytes_per_second = 50e9;
  int64_t ranks_of_node = 0;         ///< 0: bytes_per_second is the speed between any two
  double node_bytes_per_second = 0;  ///< from ranks of the same node; 0: bytes_per_second
  double latency_seconds = 0;        ///< of each collective
};

class StepClock final : public shard::CommandReader {
 public:
  /// Both outlive the clock.
  StepClock(const std::vector<shard::UnitSizes>& units, const MachineSpeed& speed);

  void read(const shard::Command& command) override;
  void compute(double seconds);

  double computed() const { return computed_; }
  double communicated() const { return communicated_; }  ///< by all collectives, one after another
  double exposed() const { return exposed_; }            ///< for which compute stood still

 private:
  void gather(size_t unit);
  void reduce(size_t unit);
  double seconds_of_shards(const shard::UnitSizes& unit, int64_t payload) const;
  double put_on(double& stream, double seconds);
  void wait_until(double time);

  /// When the collectives of a unit end.
  struct Ends {
    double gather = 0, sending = 0, reduction = 0;
  };

  const std::vector<shard::UnitSizes>& units_;
  const MachineSpeed& speed_;
  std::vector<Ends> ends_;
  double now_ = 0, communication_ = 0, replicas_ = 0;  ///< where the streams are
  double computed_ = 0, communicated_ = 0, exposed_ = 0;
};

}  // namespace fsdp::plan
