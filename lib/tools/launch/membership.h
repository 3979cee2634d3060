#pragma once

// Decides which replicas of a run take part in its steps, while processes, nodes and links fail. A replica is
// replica_size consecutive ranks that together have the whole state of the run; all replicas have the same.
//
//   waiting -- enough replicas, which have the state --> running -- a replica is ready to join --> pausing
//      ^                                                    | a replica is lost, a worker cannot go on |
//      +------- all have said where they stand, or are lost --- stopping <---- they have stopped ------+
//
// The rules:
//   - A worker that cannot go on, or a replica that is lost, breaks the epoch off. The workers of the others say
//     at which step they stand. One that does not say so in time is lost; one that does is not, whatever others
//     suspect, unless epochs break off again and again without a step: then the most suspected replica is lost.
//   - A lost replica is fenced: all its processes are killed. A new incarnation of it is started, max_restarts
//     times unless its failure would come again (may_end_differently()), and joins between two steps.
//   - The next epoch continues after the latest step that a member has reached. Workers differ by one step at
//     most, because a step needs all members of its epoch. Parts of the state that no member has are lost, and
//     then so is the state: all replicas start again from the newest checkpoint.
//   - At least min_replicas take part.
//
// This class uses neither processes, sockets nor a clock: coordinator.h passes it what happens, and carries out
// its orders. Its decisions are tested by simulation (tests/tools/launch/membership_simulation_test.cpp).

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
    int max_restarts = 0;  ///< of each replica
    double join_timeout_seconds =
        600;  ///< for processes to be ready, for enough replicas, for a pause, and for the last to end
    double stop_timeout_seconds = 30;  ///< for workers to stop once their epoch is broken off
    double pause_grace_seconds = 1;    ///< from the first that stopped for a pause until the rest break off
    double fence_seconds = 0;          ///< after which the workers of a node that is silent have ended
    /// Starts all workers of the replica; kills them.
    std::function<void(int replica, int incarnation)> start{}, fence{};
    std::function<void(int replica, int incarnation)> pause{};
    std::function<void(int replica, int incarnation, const std::string& why)> break_off{};
    /// Tells the epoch to all workers of the replica. master_addr is left open.
    std::function<void(int replica, int incarnation, const Epoch& epoch)> begin{};
    /// The run has ended like this; the workers that still run are to be stopped. Called once.
    std::function<void(const Verdict& verdict)> over{};
  };

  explicit Membership(Settings settings);

  /// Starts all replicas.
  void begin(Time now) { advance(waiting_since_ = now); }
  /// Worker `rank` of the run has said something. Incarnations other than the present one are ignored, here and
  /// below.
  void said(int rank, int incarnation, const WorkerReport& report, Time now);
  void ended(int rank, int incarnation, const WorkerEnd& end, Time now);
  /// The node of these ranks is gone: with its workers, or `silent`, so that they may go on for fence_seconds.
  void node_lost(int first_rank, int workers, const std::string& why, bool silent, Time now);
  /// Another node has taken its place.
  void node_found(int first_rank, int workers, Time now);
  /// Takes the actions that are due.
  void tick(Time now) { advance(now); }
  /// When tick() must be called at the latest.
  std::optional<Time> next_due() const;

  bool is_over() const { return phase_ == Phase::kOver; }
  /// The present or last epoch.
  const Epoch& epoch() const { return epoch_; }
  /// Whether the replica takes part in the present epoch.
  bool is_member(int replica) const;
  /// The replica was lost and no new incarnation of it runs yet, or ever will.
  bool is_lost(int replica) const;
  bool is_given_up(int replica) const;

 private:
  enum class Phase { kWaiting, kRunning, kPausing, kStopping, kOver };
  enum class State {
    kAbsent,    ///< none of its processes runs
    kStarting,  ///< not all of its workers are ready
    kReady,     ///< to join
    kMember,    ///< of the present or last epoch, and has its state
    kFenced,    ///< lost, and some process has not yet ended
    kFinished,  ///< all its workers have ended as they should
  };

  struct Worker {
    bool has_node = true;
    bool runs = false;
    bool is_ready = false;
    bool has_finished = false;
    std::optional<WorkerReport> stopped{};  ///< in the present epoch
    int port = 0;
  };
  struct Replica {
    State state = State::kAbsent;
    int incarnation = 0;       ///< how often it was started
    bool is_hopeless = false;  ///< it failed in a way that would come again
    Time since{};              ///< when it was last started
    std::vector<Worker> workers{};
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
  Worker& worker(int rank);
  std::vector<int> in_state(State state) const;
  bool is_ending() const;
  bool has_stopped(int number) const;
  bool lacks_state(int number) const;
  std::string ranks_that_have_not(bool (*done)(const Worker&), int number) const;
  std::string name_of(int number) const;

  const Settings settings_;
  Phase phase_ = Phase::kWaiting;
  std::vector<Replica> replicas_;
  Epoch epoch_;
  Time waiting_since_{};
  /// kPausing: when the epoch is broken off; kStopping: when those that have not stopped are lost.
  Time stop_by_{};
  Time state_lives_until_{};  ///< perhaps, on a silent node; no other may continue from a checkpoint before
  std::optional<Time> ending_since_;  ///< when the first worker of this epoch finished
  bool explained_ = false;            ///< the end of the epoch: a replica was lost, or one joins
  int fruitless_ = 0;  ///< epochs in a row that were broken off without a step for no cause seen
  std::map<int, WorkerEnd> failures_;  ///< rank -> its last end, if that was its own fault
  bool preempted_ = false;             ///< some worker
  int events_ = 0;
  Time now_{};  ///< of the last event
};

}  // namespace fsdp::launch
