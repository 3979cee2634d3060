#pragma once

// What a worker of a run with replicas and its launcher tell each other. Each line on the channel between them
// is one JSON object, distinguished by "type":
//
//   worker to launcher   ready     a new process, which has no state yet
//                        stopped   it has left its epoch: WorkerReport
//   launcher to worker   pause     leave the epoch between two steps
//                        break_off leave the epoch at once: some collective of it can never be finished
//                        epoch     take part in this epoch: Epoch
//
// A worker takes part in one epoch at a time. It says that it has stopped once for each, of its own accord or
// after a pause or break_off, and then waits for the next epoch.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::launch {

/// A membership: which replicas take part, under which ranks, and who has the state of the run. A worker that
/// keeps part j of its replica's state has index j in its replica.
struct Epoch {
  int number = 0;               ///< 1 is the first
  std::vector<int> replicas{};  ///< that take part, ascending; numbers in the whole run
  int replica_size = 1;         ///< workers of each
  int min_replicas = 1;         ///< that take part in any epoch of the run
  int64_t step =
      -1;  ///< to continue after; -1: forget any state and read the newest checkpoint, if there is one
  /// Unless step is -1: for each index in a replica, the rank in this epoch that has that part of the state after
  /// `step`, perhaps once it has finished the step by itself (WorkerReport::can_finish_step), and gives it to...
  std::vector<int> sources{};
  /// ...those of these ranks in this epoch that have the index.
  std::vector<int> behind{};
  std::string master_addr{};  ///< where rank 0 of the epoch listens, as MASTER_ADDR and MASTER_PORT
  int master_port = 0;

  bool operator==(const Epoch&) const = default;
  int world_size() const { return static_cast<int>(replicas.size()) * replica_size; }
  /// The rank in this epoch of the worker that has rank `home` among all of the run; -1 if it has none.
  int rank_of(int home) const {
    const auto found = std::find(replicas.begin(), replicas.end(), home / replica_size);
    if (found == replicas.end()) return -1;
    return static_cast<int>(found - replicas.begin()) * replica_size + home % replica_size;
  }
};

/// What a worker says.
struct WorkerReport {
  enum class Kind { kReady, kStopped };
  Kind kind = Kind::kReady;
  int epoch = 0;      ///< kStopped: that it has left
  int64_t step = -1;  ///< kStopped: its state is that after this step; -1: it has received none yet
  /// kStopped: it has all that it needs of others to finish the next step by itself, if another worker has.
  bool can_finish_step = false;
  std::vector<int> suspects{};  ///< kStopped: ranks in the epoch that it waited for or lost; may be empty
  int port = 0;                 ///< free on its node; added by its launcher
};

}  // namespace fsdp::launch
