#pragma once

// Simulated time, processes, and a network between the coordinator of a run and the launchers of its nodes:
// messages are delayed by random times, but arrive in order in each direction; those to and from a node that
// is cut off wait. Time is in milliseconds.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "tools/launch/epoch.h"

namespace fsdp::testing {

/// Of a worker, with the state of its training.
struct Process {
  int rank = 0, incarnation = 0, node = 0;
  bool alive = true;
  bool frozen = false;                        ///< by SIGSTOP, or computes for ever
  std::vector<std::function<void()>> held{};  ///< what it will do once it is not frozen
  bool in_epoch = false;
  bool epoch_has_begun = false;
  launch::Epoch epoch{};
  int part = 0;  ///< of the present epoch: counts its collectives; changes make older events void
  int64_t step = 0;
  uint64_t state = 0;  ///< a hash of all that led to it
  bool has_state = false;
  bool can_finish = false;
  bool pause = false;
};

class SimulatedNetwork {
 protected:
  using Time = std::chrono::steady_clock::time_point;

  explicit SimulatedNetwork(uint64_t seed) : random_(seed) {}

  struct Event {
    int64_t at;
    uint64_t number;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::tie(at, number) > std::tie(other.at, other.number);
    }
  };
  struct Node {
    int session = 0;  ///< of its launcher; messages of an earlier one are void
    bool joined = true;
    bool cut = false;          ///< from the coordinator and all other nodes
    int64_t to = 0, from = 0;  ///< when the last message arrives, so that none overtakes another
    std::vector<std::pair<bool, std::function<void()>>> held{};  ///< to (true) or from it, while it is cut
  };

  static Time time(int64_t ms) { return Time(std::chrono::milliseconds(ms + 1)); }
  static int64_t milliseconds(Time at) {
    return std::chrono::ceil<std::chrono::milliseconds>(at.time_since_epoch()).count() - 1;
  }
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = concat(what, ", at ", now_, " ms");
  }
  void schedule(int64_t after, std::function<void()> action) {
    events_.push({now_ + after, ++event_, std::move(action)});
  }
  Node& node(int number) { return nodes_[static_cast<size_t>(number)]; }

  // Messages between the coordinator and the launcher of a node, in order in each direction.

  void carry(int number, bool is_to, std::function<void()> deliver) {
    Node& own = node(number);
    if (!own.joined) return;
    if (own.cut) return own.held.emplace_back(is_to, std::move(deliver)), void();
    int64_t& last = is_to ? own.to : own.from;
    last = std::max(last, now_ + pick(0, 4));
    const int session = own.session;
    schedule(last - now_, [=, this] {
      // What was on its way when the link was cut has not arrived.
      if (node(number).session != session) return;
      if (node(number).cut) return node(number).held.emplace_back(is_to, deliver), void();
      deliver();
    });
  }
  void to_node(int number, std::function<void()> deliver) { carry(number, true, std::move(deliver)); }
  void to_coordinator(int number, std::function<void()> deliver) {
    carry(number, false, [=, this] {
      if (node(number).joined && !is_over_) deliver();
    });
  }

  // Processes.

  Process* find(int rank, int incarnation) {
    const auto found = processes_.find({rank, incarnation});
    return found == processes_.end() ? nullptr : &found->second;
  }
  void when_it_runs(Process& process, std::function<void()> action) {
    if (!process.alive) return;
    if (process.frozen) return process.held.push_back(std::move(action));
    action();
  }
  /// Something that the process does after a while, unless it has left the part of its epoch.
  void later(Process& process, int64_t after, std::function<void()> action) {
    const int part = process.part;
    schedule(after, [=, this, &process] {
      if (process.part != part) return;
      when_it_runs(process, [=, &process] {
        if (process.part == part && process.alive) action();
      });
    });
  }
  void thaw(Process& process) {
    process.frozen = false;
    for (const auto& action : std::exchange(process.held, {})) {
      if (process.alive) when_it_runs(process, action);
    }
  }
  void kill_all_on(int number) {
    for (auto& [key, process] : processes_) {
      if (process.node == number) process.alive = false;
    }
  }

  std::mt19937_64 random_;
  std::vector<Node> nodes_;
  std::map<std::pair<int, int>, Process> processes_;  ///< by rank and incarnation
  std::priority_queue<Event> events_;
  uint64_t event_ = 0;
  int64_t now_ = 0;
  bool is_over_ = false;  ///< the coordinator listens no more
  std::string failure_;   ///< the first rule that was broken
};

}  // namespace fsdp::testing
