#pragma once

// Messages between a worker of a run with replicas and its launcher. Each line on the channel between them is
// one JSON object with a "type":
//
//   worker to launcher   ready     a new process without state is ready
//                        stopped   the worker has left its epoch: WorkerReport
//   launcher to worker   pause     leave the epoch between two steps
//                        break_off leave the epoch at once: a collective in it can never finish
//                        epoch     take part in this epoch: Epoch
//
// A worker takes part in one epoch at a time. It sends `stopped` once for each epoch, of its own accord or
// after a pause or break_off, and then waits for the next epoch.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::launch {

/// A period with a fixed set of replicas: the replicas that take part, their ranks, and the ranks that have
/// the run's state. A worker that keeps part j of its replica's state has index j in its replica.
struct Epoch {
  int number = 0;               ///< number of the epoch, from 1
  std::vector<int> replicas{};  ///< replicas that take part, ascending, by their numbers in the run
  int replica_size = 1;         ///< number of workers of a replica
  int min_replicas = 1;         ///< least number of replicas in an epoch of the run
  /// Step after which to continue; -1: drop all state and read the newest checkpoint, if there is one.
  int64_t step = -1;
  /// Senders of the state: for each index in a replica, the rank in this epoch that sends that part of the
  /// state after `step` to the ranks in `behind` with the same index, possibly after finishing the step by
  /// itself (WorkerReport::can_finish_step). Empty if step is -1.
  std::vector<int> sources{};
  /// Ranks in this epoch that receive the state.
  std::vector<int> behind{};
  std::string master_addr{};  ///< address where rank 0 of the epoch listens (MASTER_ADDR, MASTER_PORT)
  int master_port = 0;

  bool operator==(const Epoch&) const = default;
  int world_size() const { return static_cast<int>(replicas.size()) * replica_size; }
  /// The rank in this epoch of the worker with rank `home` in the run. -1 if it does not take part.
  int rank_of(int home) const {
    const auto found = std::find(replicas.begin(), replicas.end(), home / replica_size);
    if (found == replicas.end()) return -1;
    return static_cast<int>(found - replicas.begin()) * replica_size + home % replica_size;
  }
};

/// A report that a worker sends.
struct WorkerReport {
  enum class ReportKind { kReady, kStopped };
  ReportKind kind = ReportKind::kReady;
  int epoch = 0;      ///< kStopped: epoch that the worker has left
  int64_t step = -1;  ///< kStopped: step after which its state is; -1: it has no state yet
  /// kStopped: whether it has received all that it needs to finish the next step by itself, if another worker
  /// has finished that step.
  bool can_finish_step = false;
  std::vector<int> suspects{};  ///< kStopped: ranks in the epoch that it waited for or lost
  int port = 0;                 ///< a free port of its node, which its launcher adds
};

}  // namespace fsdp::launch
