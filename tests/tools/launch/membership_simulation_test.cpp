// Membership among simulated nodes and workers: a seeded scheduler delays messages, kills, stops and hangs
// processes, loses nodes and cuts links at random moments, also while the run recovers. Time is in
// milliseconds.
//
// The workers follow the protocol of epoch.h. A step has three parts, as training has: each member
// contributes its samples; who has all contributions can finish the step; who knows that all can has finished
// it.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/log.h"
#include "tools/launch/membership.h"
#include "tools/launch/replica_steps.h"
#include "tools/launch/simulated_network.h"

namespace fsdp::launch {
namespace {

constexpr uint64_t kAllSamples = (uint64_t{1} << 24) - 1;
constexpr int64_t kStepsOfCheckpoint = 7;
constexpr int kStopTimeout = 300, kJoinTimeout = 1000, kSilence = 400, kCollectiveTimeout = 200;

using testing::Process;

class Simulation : private testing::SimulatedNetwork {
 public:
  /// `worker_goes_on`: break the protocol, as a worker that finishes a step after it has said that it
  /// stopped.
  explicit Simulation(uint64_t seed, bool worker_goes_on = false)
      : SimulatedNetwork(seed), worker_goes_on_(worker_goes_on) {
    replicas_ = pick(2, 4);
    size_ = pick(1, 3);
    std::vector<int> divisors;
    for (int nodes = 1; nodes <= replicas_ * size_; ++nodes) {
      if (replicas_ * size_ % nodes == 0) divisors.push_back(nodes);
    }
    nodes_.resize(
        static_cast<size_t>(divisors[static_cast<size_t>(pick(0, static_cast<int>(divisors.size()) - 1))]));
    per_node_ = replicas_ * size_ / static_cast<int>(nodes_.size());
    // Some are long after the last fault, to see who takes part then.
    const bool is_long = pick(0, 3) == 0;
    steps_ = is_long ? 500 : pick(20, 120);
    faults_until_ = pick(0, is_long ? 800 : 4000);
    fault_every_ = pick(20, 800);
    Membership::Settings settings{.replicas = replicas_,
                                  .replica_size = size_,
                                  .min_replicas = pick(0, 2) ? 1 : pick(1, replicas_),
                                  .max_restarts = pick(0, 2) ? 100 : pick(0, 3),
                                  .join_timeout_seconds = kJoinTimeout / 1000.0,
                                  .stop_timeout_seconds = kStopTimeout / 1000.0,
                                  .pause_grace_seconds = 0.02,
                                  .fence_seconds = 2 * kSilence / 1000.0};
    const auto to_ranks = [this](int replica, auto&& action) {
      for (int index = 0; index < size_; ++index) {
        const int rank = replica * size_ + index;
        to_node(rank / per_node_, [action, rank] { action(rank); });
      }
    };
    settings.start = [=, this](int replica, int incarnation) {
      if (incarnation > 1) ++restarts;
      to_ranks(replica, [=, this](int rank) { spawn(rank, incarnation); });
    };
    settings.fence = [=, this](int replica, int incarnation) {
      fenced_.emplace(replica, incarnation);
      to_ranks(replica, [=, this](int rank) {
        Process* process = find(rank, incarnation);
        if (process && process->alive) die(*process, true);
      });
    };
    settings.pause = [=, this](int replica, int incarnation) {
      const int number = membership_->epoch().number;
      tell(replica, incarnation, [=](Process& each) { each.pause |= each.epoch.number == number; });
    };
    settings.break_off = [=, this](int replica, int incarnation, const std::string&) {
      const int number = membership_->epoch().number;
      tell(replica, incarnation, [=, this](Process& each) {
        if (each.in_epoch && each.epoch.number == number) stop(each, {});
      });
    };
    settings.begin = [=, this](int replica, int incarnation, const Epoch& epoch) {
      check_epoch(replica, incarnation, epoch);
      tell(replica, incarnation, [=, this](Process& each) { enter(each, epoch); });
    };
    settings.over = [this](const Verdict& verdict) {
      EXPECT_FALSE(verdict_) << "over twice";
      verdict_ = verdict;
      is_over_ = true;
    };
    membership_ = std::make_unique<Membership>(std::move(settings));
  }

  void run() {
    membership_->begin(time(now_));
    schedule(pick(0, 2 * fault_every_), [this] { inject(); });
    constexpr int64_t kRecovery = 4 * kJoinTimeout, kEnd = 400000;
    bool checked = false;
    while (!verdict_ && failure_.empty()) {
      int64_t due = events_.empty() ? kEnd : events_.top().at;
      if (const auto next = membership_->next_due()) due = std::min(due, milliseconds(*next));
      if (due >= kEnd) {
        // If no other worker waits for one that is stopped for ever, nobody can know.
        const auto waits = [](const auto& entry) { return entry.second.alive && !entry.second.frozen; };
        const bool somebody_waits = std::ranges::any_of(processes_, waits);
        if (somebody_waits || std::exchange(nobody_knew_, true)) return fail("the run does not end");
        for (auto& [key, process] : processes_) thaw(process);
        continue;
      }
      now_ = std::max(now_, due);
      if (!events_.empty() && events_.top().at <= now_) {
        const auto action = events_.top().action;
        events_.pop();
        action();
      }
      if (!verdict_) membership_->tick(time(now_));
      if (!verdict_ && !checked && cut_for_good_.empty() && now_ > faults_until_ + kRecovery) {
        checked = true;
        for (int replica = 0; replica < replicas_; ++replica) {
          if (!membership_->is_member(replica) && !membership_->is_given_up(replica)) {
            fail(concat("replica ", replica, " neither takes part again nor is given up"));
          }
        }
      }
    }
    if (!failure_.empty()) return;
    const bool is_failure = verdict_->exit_code != 0;
    if (is_failure && verdict_->cause.empty() && !verdict_->culprit) fail("an end without a reason");
    if (!is_failure && (lineage_.empty() || lineage_.rbegin()->first != steps_))
      fail("an end before the last step");
  }

  const std::string& failure() const { return failure_; }
  bool has_succeeded() const { return failure_.empty() && verdict_->exit_code == 0; }
  int epochs() const { return membership_->epoch().number; }
  int restarts = 0, from_checkpoints = 0, faults = 0;

 private:
  void tell(int replica, int incarnation, std::function<void(Process&)> action) {
    for (int index = 0; index < size_; ++index) {
      const int rank = replica * size_ + index;
      to_node(rank / per_node_, [=, this] {
        if (Process* process = find(rank, incarnation)) when_it_runs(*process, [=] { action(*process); });
      });
    }
  }

  void spawn(int rank, int incarnation) {
    Process& process = processes_[{rank, incarnation}];
    process.rank = rank;
    process.incarnation = incarnation;
    process.node = rank / per_node_;
    later(process, pick(5, 60), [=, this, &process] { report(process, {}); });
  }
  void report(Process& process, const WorkerReport& report) {
    const int rank = process.rank, incarnation = process.incarnation;
    to_coordinator(process.node, [=, this] { membership_->said(rank, incarnation, report, time(now_)); });
  }
  void die(Process& process, bool by_launcher, int code = 0) {
    process.alive = false;
    const WorkerEnd end{.rank = process.rank,
                        .status = {.exit_code = code, .signal = code ? 0 : SIGKILL},
                        .stop_signals_sent = by_launcher ? std::set<int>{SIGKILL} : std::set<int>{}};
    tell_end(process, end);
  }
  void tell_end(const Process& process, const WorkerEnd& end) {
    const int incarnation = process.incarnation;
    to_coordinator(process.node, [=, this] { membership_->ended(end.rank, incarnation, end, time(now_)); });
  }

  // A worker in an epoch.

  void check_epoch(int replica, int incarnation, const Epoch& epoch) {
    if (fenced_.contains({replica, incarnation})) fail("a fenced incarnation takes part again");
    const auto [known, is_new] = told_.emplace(epoch.number, epoch);
    if (known->second.replicas != epoch.replicas || known->second.step != epoch.step) {
      fail("two memberships with the same number");
    }
    if (!is_new) return;
    if (epoch.step < 0) {
      ++from_checkpoints;
      lineage_.erase(lineage_.upper_bound(checkpoint_.first), lineage_.end());
    } else {
      // What was finished beyond is not known to any member, and is done again.
      for (const auto& [member, incarnation_of] : incarnations_of(epoch)) {
        for (int index = 0; index < size_; ++index) {
          const Process* process = find(member * size_ + index, incarnation_of);
          if (process && process->has_state && process->step > epoch.step)
            fail("a member is ahead of its epoch");
        }
      }
      lineage_.erase(lineage_.upper_bound(epoch.step), lineage_.end());
    }
  }
  std::map<int, int> incarnations_of(const Epoch& epoch) const {
    std::map<int, int> newest;
    for (const auto& [key, process] : processes_) newest[key.first / size_] = key.second;
    std::erase_if(newest,
                  [&](const auto& entry) { return !std::ranges::count(epoch.replicas, entry.first); });
    return newest;
  }
  int rank_in_epoch(const Process& process) const { return process.epoch.rank_of(process.rank); }
  Process* member(const Epoch& epoch, int rank) {
    const int home = epoch.replicas[static_cast<size_t>(rank / size_)] * size_ + rank % size_;
    for (auto& [key, process] : processes_) {
      if (key.first == home && process.in_epoch && process.epoch.number == epoch.number) return &process;
    }
    return nullptr;
  }

  void enter(Process& process, const Epoch& epoch) {
    if (process.in_epoch) return fail("an epoch for a worker that has not stopped");
    process.in_epoch = true;
    process.epoch_has_begun = false;
    if (epoch.step < 0) process.has_state = process.can_finish = false;
    process.epoch = epoch;
    process.pause = false;
    if (process.has_state && epoch.step == process.step + 1 && process.can_finish) {
      finish_step(process);
    }
    process.can_finish = false;
    // Connections to all others; then state for those behind; then all begin.
    meet(process, "build", 0, [this, &process] {
      if (process.epoch.step < 0) {
        // Read by all before anybody goes on, and so before it is overwritten.
        process.step = checkpoint_.first;
        process.state = checkpoint_.second;
        process.has_state = true;
      } else if (std::ranges::count(process.epoch.behind, rank_in_epoch(process))) {
        const int index = process.rank % size_;
        const Process* source = member(process.epoch, process.epoch.sources[static_cast<size_t>(index)]);
        if (!source || !source->alive) return;  // its end, or the time-out, ends the epoch
        if (source->step != process.epoch.step) return fail("the source of state does not have it");
        process.step = source->step;
        process.state = source->state;
        process.has_state = true;
      }
      meet(process, "caught up", 0, [this, &process] {
        process.epoch_has_begun = true;
        const auto [known, is_new] = start_states_.emplace(process.epoch.number, process.state);
        if (known->second != process.state) fail("members begin an epoch with different states");
        begin_step(process);
      });
    });
  }

  void begin_step(Process& process) {
    process.can_finish = false;
    if (process.step == steps_) {
      process.in_epoch = process.alive = false;
      return tell_end(process, {.rank = process.rank, .status = {}});
    }
    if (process.pause) return stop(process, {});
    if (pick(0, 400) == 0 && now_ < faults_until_) return stop(process, {});  // for a reason of its own
    later(process, pick(3, 15), [this, &process] {
      uint64_t samples = 0;
      for (int sample = rank_in_epoch(process); sample < 24; sample += process.epoch.world_size()) {
        samples |= uint64_t{1} << sample;
      }
      meet(process, "gradients", samples, [this, &process] {
        process.can_finish = true;
        meet(process, "norm", 0, [this, &process] {
          finish_step(process);
          begin_step(process);
        });
      });
    });
  }

  /// Waits until all members of the epoch that can reach the process have come here, too.
  void meet(Process& process, const char* name, uint64_t value, std::function<void()> then) {
    ++process.part;
    // Before all have caught up, they are at different steps.
    const int64_t step = process.epoch_has_begun ? process.step : -1;
    const auto key = std::tuple(process.epoch.number, step, std::string(name));
    collectives_[key][rank_in_epoch(process)] = value;
    look(process, key, value != 0, std::move(then), now_);
  }
  void look(Process& process, const std::tuple<int, int64_t, std::string>& key, bool has_samples,
            std::function<void()> then, int64_t since) {
    const std::map<int, uint64_t>& met = collectives_[key];
    std::vector<int> missing;
    for (int rank = 0; rank < process.epoch.world_size(); ++rank) {
      const int home = process.epoch.replicas[static_cast<size_t>(rank / size_)] * size_ + rank % size_;
      if (!met.contains(rank) || !connected(process.node, home / per_node_)) missing.push_back(rank);
    }
    if (missing.empty()) {
      if (has_samples) {
        uint64_t all = 0;
        for (const auto& [rank, samples] : met) {
          if (all & samples) fail("samples are repeated in a step");
          all |= samples;
        }
        if (all != kAllSamples) fail("samples are lost in a step");
      }
      return later(process, pick(0, 3), std::move(then));
    }
    if (now_ - since > kCollectiveTimeout) return stop(process, missing);
    later(process, 2, [=, this, &process] { look(process, key, has_samples, then, since); });
  }

  void stop(Process& process, const std::vector<int>& suspects) {
    process.in_epoch = false;
    ++process.part;
    report(process, {.kind = WorkerReport::ReportKind::kStopped,
                     .epoch = process.epoch.number,
                     .step = process.has_state ? process.step : -1,
                     .can_finish_step = process.can_finish,
                     .suspects = suspects});
    if (worker_goes_on_ && process.can_finish && pick(0, 3) == 0) {
      later(process, pick(10, 30), [this, &process] {
        if (!process.in_epoch) finish_step(process);
      });
    }
  }

  void finish_step(Process& process) {
    const int64_t step = ++process.step;
    // By oneself: the step of the epoch before.
    process.state = testing::mixed(process.state, static_cast<uint64_t>(step));
    process.can_finish = false;
    const Epoch& present = membership_->epoch();
    const int number = process.epoch.number;
    if (number < present.number) {
      // An epoch that has been left by others; the process has not heard of that, or is cut off.
      const Epoch& next = told_.at(number + 1);
      if (next.step < 0) fail("a step in one half of the run while the other goes on from a checkpoint");
      if (step > next.step + 1) fail("a step in an epoch that others have left");
      return;
    }
    const auto [known, is_new] = lineage_.emplace(step, process.state);
    if (!is_new && known->second != process.state) fail("a step was finished twice, with different results");
    std::set<int>& done = finished_by_[{number, step}];
    done.insert(process.rank);
    if (static_cast<int>(done.size()) == present.world_size() && step % kStepsOfCheckpoint == 0) {
      checkpoint_ = {step, process.state};
    }
  }

  // Faults.

  bool connected(int a, int b) const {
    if (a == b) return true;
    const auto& left = nodes_[static_cast<size_t>(a)];
    const auto& right = nodes_[static_cast<size_t>(b)];
    return !left.cut && !right.cut && !cut_pairs_.contains({std::min(a, b), std::max(a, b)});
  }

  void inject() {
    if (now_ >= faults_until_) return;
    schedule(pick(1, 2 * fault_every_), [this] { inject(); });
    std::vector<Process*> alive;
    for (auto& [key, process] : processes_) {
      if (process.alive) alive.push_back(&process);
    }
    if (alive.empty()) return;
    ++faults;
    Process& victim = *alive[static_cast<size_t>(pick(0, static_cast<int>(alive.size()) - 1))];
    const int victims_node = pick(0, static_cast<int>(nodes_.size()) - 1);
    const int kind = pick(0, 9);
    if (kind < 4) return die(victim, false, kind == 0 ? 3 : 0);
    if (kind < 6) {
      victim.frozen = true;
      if (pick(0, 1)) schedule(pick(1, 2 * kStopTimeout), [this, &victim] { thaw(victim); });
    } else if (kind < 9 && victims_node != 0) {  // node 0 has the coordinator
      if (kind < 8) return lose_node(victims_node);
      cut_node(victims_node, pick(1, 3 * kSilence));
    } else {
      const int other = pick(0, static_cast<int>(nodes_.size()) - 1);
      const std::pair pair(std::min(victims_node, other), std::max(victims_node, other));
      cut_pairs_.insert(pair);
      if (pick(0, 30) == 0) cut_for_good_.insert(pair);
      schedule(pick(1, 2000), [=, this] {
        if (!cut_for_good_.contains(pair)) cut_pairs_.erase(pair);
      });
    }
  }
  /// The launcher is killed, and its workers with it.
  void lose_node(int number) {
    Node& own = node(number);
    if (!own.joined || own.cut) return;
    kill_all_on(number);
    leave(number, false);
    schedule(pick(10, 1000), [=, this] { join(number); });
  }
  void leave(int number, bool silent) {
    Node& own = node(number);
    own.joined = false;
    ++own.session;
    own.held.clear();
    schedule(pick(0, 5), [=, this] {
      if (!verdict_)
        membership_->node_lost(number * per_node_, per_node_, "the node is lost", silent, time(now_));
    });
  }
  void join(int number) {
    Node& own = node(number);
    if (own.joined) return;
    if (own.cut) return schedule(50, [=, this] { join(number); });
    own.joined = true;
    // Not before the coordinator knows that the last one is lost.
    schedule(10, [=, this] {
      if (!verdict_) membership_->node_found(number * per_node_, per_node_, time(now_));
    });
  }
  void cut_node(int number, int64_t duration) {
    Node& own = node(number);
    if (own.cut || !own.joined) return;
    own.cut = true;
    const int session = own.session;
    // Heartbeats went both ways until a moment ago.
    schedule(kSilence, [=, this] {
      if (!node(number).cut || node(number).session != session) return;
      leave(number, true);
      // Its launcher notices a moment later.
      schedule(pick(0, kSilence), [=, this] {
        kill_all_on(number);
        schedule(pick(10, 1000), [=, this] { join(number); });
      });
    });
    schedule(duration, [=, this] {
      node(number).cut = false;
      for (auto& [is_to, deliver] : std::exchange(node(number).held, {})) carry(number, is_to, deliver);
    });
  }

  const bool worker_goes_on_;
  int replicas_ = 0, size_ = 0, per_node_ = 0;
  int64_t steps_ = 0, faults_until_ = 0;
  int fault_every_ = 0;
  std::set<std::pair<int, int>> cut_pairs_, cut_for_good_;
  /// Epoch, step, name -> the ranks that have reached that collective, with their samples or nothing.
  std::map<std::tuple<int, int64_t, std::string>, std::map<int, uint64_t>> collectives_;
  std::unique_ptr<Membership> membership_;

  std::set<std::pair<int, int>> fenced_;
  std::map<int, Epoch> told_;
  std::map<int, uint64_t> start_states_;  ///< of each epoch
  std::map<int64_t, uint64_t> lineage_;   ///< step -> state after it
  std::map<std::pair<int, int64_t>, std::set<int>> finished_by_;
  std::pair<int64_t, uint64_t> checkpoint_{0, 0};
  std::optional<Verdict> verdict_;
  bool nobody_knew_ = false;
};

class MembershipSimulation : public ::testing::Test {
 protected:
  void SetUp() override {
    util::set_log_sink([](util::LogLevel, std::string_view) {});
  }
  void TearDown() override { util::set_log_sink({}); }
};

TEST_F(MembershipSimulation, KeepsItsRulesUnderRandomFaults) {
  int succeeded = 0, restarts = 0, from_checkpoints = 0, faults = 0, epochs = 0;
  constexpr int kSeeds = 2000;
  // To look at one: FSDP_SIMULATION_SEED=63.
  const char* chosen = std::getenv("FSDP_SIMULATION_SEED");
  if (chosen) util::set_log_sink({});
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    if (chosen && std::stoull(chosen) != seed) continue;
    Simulation simulation(seed);
    simulation.run();
    ASSERT_EQ(simulation.failure(), "") << "seed " << seed;
    succeeded += simulation.has_succeeded();
    restarts += simulation.restarts;
    from_checkpoints += simulation.from_checkpoints;
    faults += simulation.faults;
    epochs += simulation.epochs();
  }
  if (chosen) return;
  std::cout << kSeeds << " runs, " << succeeded << " to their last step; " << faults << " faults, "
            << restarts << " restarts of replicas, " << epochs << " epochs, " << from_checkpoints
            << " of them from a checkpoint\n";
  EXPECT_GT(succeeded, kSeeds / 2);
  EXPECT_GT(restarts, kSeeds);
  EXPECT_GT(from_checkpoints, kSeeds);
}

TEST_F(MembershipSimulation, NoticesAWorkerThatGoesOnAfterItHasStopped) {
  int noticed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Simulation simulation(seed, /*worker_goes_on=*/true);
    simulation.run();
    noticed += !simulation.failure().empty();
  }
  EXPECT_GT(noticed, 0);
}

}  // namespace
}  // namespace fsdp::launch
