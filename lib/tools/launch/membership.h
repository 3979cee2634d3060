#pragma once

// Decides which replicas of a run take part in its steps, while processes, nodes and links fail. A replica is
// replica_size consecutive ranks that together have the whole state of the run. All replicas have the same
// state.
//
//   waiting -- enough replicas, which have the state --> running -- a replica is ready to join --> pausing
//      ^                                                    | a replica is lost, a worker cannot go on |
//      +------- all have reported their step, or are lost ----- stopping <---- they have stopped ------+
//
// A worker that cannot continue, or a lost replica, breaks the epoch off, and the other workers report their
// step. Workers differ by at most one step, because a step needs all members of its epoch. The next epoch
// continues after the latest step, or from the newest checkpoint if no member has some part of the state.
// A lost replica is fenced: all its processes are killed. A new incarnation joins between two steps.
//
// Uses neither processes, sockets nor a clock: coordinator.h passes events and carries out the orders, and
// tests/tools/launch/membership_simulation_test.cpp simulates them.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/epoch.h"
#include "tools/launch/verdict.h"

namespace fsdp::launch {

class Membership {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Settings {
    int replicas = 1;
    int replica_size = 1;
    int min_replicas = 1;
    int max_restarts = 0;  ///< restarts of each replica
    /// Limit for processes to be ready, for enough replicas, for a pause, and for the last worker to end.
    double join_timeout_seconds = 600;
    double stop_timeout_seconds = 30;  ///< limit for workers to stop once their epoch is broken off
    double pause_grace_seconds = 1;    ///< time from the first stop for a pause until the others break off
    double fence_seconds = 0;          ///< time after which the workers of a silent node have ended
    /// Start and kill all workers of the replica.
    std::function<void(int replica, int incarnation)> start{}, fence{};
    std::function<void(int replica, int incarnation)> pause{};
    std::function<void(int replica, int incarnation, const std::string& why)> break_off{};
    /// Sends the epoch to all workers of the replica, with an empty master_addr.
    std::function<void(int replica, int incarnation, const Epoch& epoch)> begin{};
    /// Called once, when the run has ended. Stops the workers that still run.
    std::function<void(const Verdict& verdict)> over{};
  };

  explicit Membership(Settings settings);

  /// Starts all replicas.
  void begin(Time now) { advance(waiting_since_ = now); }
  /// Handles a report of worker `rank` of the run. This and the functions below ignore all but the current
  /// incarnation.
  void said(int rank, int incarnation, const WorkerReport& report, Time now);
  void ended(int rank, int incarnation, const WorkerEnd& end, Time now);
  /// Handles the loss of the node of these ranks. Its workers have ended, or, if `silent`, they may continue
  /// for fence_seconds.
  void node_lost(int first_rank, int workers, const std::string& why, bool silent, Time now);
  /// Handles another node that replaces the node of these ranks.
  void node_found(int first_rank, int workers, Time now);
  /// Takes all actions that are due.
  void tick(Time now) { advance(now); }
  /// The latest time for the next call of tick().
  std::optional<Time> next_due() const;

  bool is_over() const { return phase_ == EpochPhase::kOver; }
  /// The current or last epoch.
  const Epoch& epoch() const { return epoch_; }
  /// Whether the replica takes part in the current epoch.
  bool is_member(int replica) const;
  /// Whether the replica was lost and no new incarnation runs, now or ever.
  bool is_lost(int replica) const;
  bool is_given_up(int replica) const;

 private:
  enum class EpochPhase { kWaiting, kRunning, kPausing, kStopping, kOver };
  enum class ReplicaState {
    kAbsent,    ///< none of its processes runs
    kStarting,  ///< not all of its workers are ready
    kReady,     ///< all of its workers are ready to join
    kMember,    ///< a member of the current or last epoch, with its state
    kFenced,    ///< lost, with a process that has not yet ended
    kFinished,  ///< all of its workers have finished
  };

  struct ReplicaWorker {
    bool has_node = true;
    bool runs = false;
    bool is_ready = false;
    bool has_finished = false;
    std::optional<WorkerReport> stopped{};  ///< report of its stop in the current epoch
    int port = 0;
  };
  struct Replica {
    ReplicaState state = ReplicaState::kAbsent;
    int incarnation = 0;       ///< how often the replica was started
    bool is_hopeless = false;  ///< whether it failed in a way that would recur
    Time since{};              ///< time of its last start
    std::vector<ReplicaWorker> workers{};
  };

  void advance(Time now);
  bool advance_once(Time now);
  void start_absent(Time now);
  bool lose_slow_starters(Time now);
  bool lose_slow_finishers(Time now);
  void break_off(const std::string& why, Time now);
  bool collect_stops(Time now);
  bool form_if_possible(Time now);
  bool continue_from(const std::vector<int>& holders, const std::vector<int>& members, Time now);
  void lose_if_fruitless(Time now);
  void form(std::vector<int> members, int64_t step, const std::vector<int>& givers);
  std::vector<int> givers_of(int64_t step, const std::vector<int>& holders) const;
  void lose(int replica, const std::string& why, Time now);
  void give_up(int replicas_left, const std::string& what);

  Replica& replica(int number) { return replicas_[static_cast<size_t>(number)]; }
  const Replica& replica(int number) const { return replicas_[static_cast<size_t>(number)]; }
  ReplicaWorker& worker(int rank);
  std::vector<int> in_state(ReplicaState state) const;
  bool is_ending() const;
  bool has_stopped(int number) const;
  bool lacks_state(int number) const;
  std::string ranks_that_have_not(bool (*done)(const ReplicaWorker&), int number) const;
  std::string name_of(int number) const;

  const Settings settings_;
  EpochPhase phase_ = EpochPhase::kWaiting;
  std::vector<Replica> replicas_;
  Epoch epoch_;
  Time waiting_since_{};
  /// kPausing: when the epoch is broken off. kStopping: when replicas that have not stopped are lost.
  Time stop_by_{};
  /// Until then a silent node may have the state, and nobody may continue from a checkpoint.
  Time state_lives_until_{};
  std::optional<Time> ending_since_;  ///< when the epoch's first worker finished
  bool explained_ = false;  ///< whether the end of the epoch has a known reason: a replica was lost or joins
  int fruitless_ = 0;       ///< number of consecutive epochs that broke off without a step and a known reason
  std::map<int, WorkerEnd> failures_;  ///< rank -> its last end that was its own fault
  bool preempted_ = false;             ///< whether a worker was pre-empted
  int events_ = 0;
  Time now_{};  ///< time of the last event
};

}  // namespace fsdp::launch
