#include "tools/simulate/step_simulation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "base/util/error.h"
#include "tools/plan/unit_jobs.h"
#include "tools/simulate/shared_resources.h"
#include "tools/simulate/unit_calls.h"

namespace fsdp::simulate {
namespace {

using shard::UnitSizes;
using ActivityNumber = SharedResources::ActivityNumber;
using JobNumber = size_t;  ///< number of a collective; 0: none, which is done

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMicroseconds = 1e6;

/// Time, which only increases, and activities that share resources.
class SimulatedClock {
 public:
  double now() const { return now_; }
  SharedResources& resources() { return resources_; }
  void pass(double seconds) {
    resources_.pass(seconds);
    now_ += seconds;
  }

 private:
  SharedResources resources_;
  double now_ = 0;
};

struct SimulatedCollective {
  // Identity of the collective.
  size_t queue = 0;
  JobNumber after = 0;
  Cost cost;
  std::string kind;  ///< key of StepTimes::exposed_by_kind
  Obstacle obstacle = Obstacle::kLatency;
  comm::TraceEvent event;

  // Progress of the collective.
  size_t arrived = 0;           ///< number of kinds of ranks that have issued it
  double complete_at = kNever;  ///< time at which all ranks have issued it
  std::optional<double> begun_at = std::nullopt;
  size_t stage = 0;
  double delay_ends = 0;
  bool is_in_delay = false, is_done = false;
  ActivityNumber transfer = 0;
};

/// The part of the cost that takes longest.
Obstacle obstacle_of(const Cost& cost, const NetworkTable& network, double cores) {
  std::array<double, kObstacles> seconds{};
  const auto at = [&seconds](Obstacle obstacle) -> double& { return seconds[static_cast<size_t>(obstacle)]; };
  for (const Stage& stage : cost) {
    at(Obstacle::kLatency) += stage.delay_seconds;
    const double whole = transfer_seconds(stage, network, cores);
    Obstacle slowest = Obstacle::kCores;
    for (const auto& [level, obstacle] :
         {std::pair(Level::kInside, Obstacle::kInside), std::pair(Level::kBetween, Obstacle::kBetween),
          std::pair(Level::kSlices, Obstacle::kSlices)}) {
      const double speed = network.at(level).bytes_per_second;
      if (speed > 0 && stage.bytes_at(level) / speed >= whole) slowest = obstacle;
    }
    at(slowest) += whole;
  }
  return static_cast<Obstacle>(std::ranges::max_element(seconds) - seconds.begin());
}

class StepRun {
 public:
  StepRun(const StepProgram& program, const plan::Units& units, const Cluster& cluster,
          const StepOptions& options)
      : program_(program),
        units_(units),
        cluster_(cluster),
        options_(options),
        calls_(cluster, options.reduce_scatter_group) {
    for (size_t& link : links_) link = clock_.resources().add();
    for (const double slowness : options.slowness) {
      ranks_.push_back(
          {.slowness = slowness, .cores = clock_.resources().add(), .attention = clock_.resources().add()});
      ranks_.back().jobs.resize(units.size());
    }
  }

  StepTimes run() {
    for (const Section& section : program_.sections) run(section);
    return std::move(times_);
  }

 private:
  /// Ranks that are alike.
  struct SimulatedRank {
    double slowness = 1;
    SharedResources::Resource cores = 0;
    /// The part of transfers' speed that compute takes, besides the cores' time (Link::speed_beside_compute).
    SharedResources::Resource attention = 0;
    size_t next = 0;    ///< operation
    size_t issued = 0;  ///< collectives
    std::vector<plan::UnitJobs> jobs = {};
    std::map<int64_t, JobNumber> sends = {};
    ActivityNumber computing = 0;
    double computing_since = 0;
    JobNumber waiting_for = 0;
    double waiting_since = 0;
    std::map<int64_t, size_t> open = {};  ///< units that compute, with the numbers of their events
  };

  void run(const Section& section) {
    const double begin = clock_.now();
    operations_ = &section.operations;
    times_of_section_ = section.times;
    for (SimulatedRank& rank : ranks_) rank.next = 0;
    while (!advance_all()) {
      double next = clock_.resources().until_next();
      for (const JobNumber job : under_way_) {
        const SimulatedCollective& collective = of(job);
        if (collective.is_in_delay) next = std::min(next, collective.delay_ends - clock_.now());
      }
      FSDP_CHECK(std::isfinite(next), "nothing is under way, but a rank waits");
      clock_.pass(std::max(next, 0.0));
      progress();
    }
    times_.step += section.times * (clock_.now() - begin);
  }

  /// Lets all ranks and collectives continue until they wait. Returns whether all ranks have finished the
  /// section.
  bool advance_all() {
    bool all_are_done = true;
    for (size_t i = 0; i < ranks_.size(); ++i) all_are_done = advance(i) && all_are_done;
    while (begin_collectives()) {
      all_are_done = true;
      for (size_t i = 0; i < ranks_.size(); ++i) all_are_done = advance(i) && all_are_done;
    }
    return all_are_done;
  }

  // ---- ranks

  /// Continues until the rank waits. Returns whether it has finished the section.
  bool advance(size_t index) {
    SimulatedRank& rank = ranks_[index];
    for (;;) {
      if (rank.computing != 0) {
        if (!clock_.resources().is_done(rank.computing)) return false;
        rank.computing = 0;
        if (index == 0) times_.computing += times_of_section_ * (clock_.now() - rank.computing_since);
      }
      if (rank.waiting_for != 0) {
        if (!of(rank.waiting_for).is_done) return false;
        note_wait(index);
        rank.waiting_for = 0;
      }
      if (rank.next == operations_->size()) return true;
      execute(index, (*operations_)[rank.next++]);
    }
  }

  void execute(size_t index, const Operation& operation) {
    SimulatedRank& rank = ranks_[index];
    switch (operation.kind) {
      case OperationKind::kCompute:
        return compute(rank, operation.seconds.sum());
      case OperationKind::kCommand:
        return execute(index, operation.command);
      case OperationKind::kSend:
        rank.sends[operation.number] = issue(index, calls_.exchange_in_layer(operation.bytes, pass_));
        return;
      case OperationKind::kCopy:
        rank.sends[operation.number] = issue(index, calls_.copy(operation.bytes));
        return;
      case OperationKind::kWaitForSend:
        return wait(index, rank.sends.at(operation.number));
      case OperationKind::kCollective:
        return wait(index, issue(index, calls_.of_all_ranks(operation)));
      case OperationKind::kBegin:
      case OperationKind::kEnd:
        if (index == 0) note_stage(operation);
        return;
    }
  }

  void compute(SimulatedRank& rank, double seconds) {
    seconds *= rank.slowness;
    rank.computing_since = clock_.now();
    const double cores = cluster_.cores_of_rank;
    if (cores == 0) {
      rank.computing = clock_.resources().start(seconds, {});
      return;
    }
    const auto threads = static_cast<double>(cluster_.threads);
    const double share = std::min(1.0, threads / cores);
    const Level level = cluster_.ranks_of_host > 0 ? Level::kBetween : Level::kInside;
    rank.computing = clock_.resources().start(
        seconds * std::max(1.0, threads / cores),
        {{.resource = rank.cores, .share = share},
         {.resource = rank.attention, .share = 1 - cluster_.network.at(level).speed_beside_compute}},
        threads);
  }

  void wait(size_t index, JobNumber job) {
    if (job == 0 || of(job).is_done) {
      if (index == 0 && job != 0 && !of(job).event.wait_us) note_wait_of(of(job), clock_.now());
      return;
    }
    ranks_[index].waiting_for = job;
    ranks_[index].waiting_since = clock_.now();
  }

  void execute(size_t index, const shard::Command& command) {
    using Kind = shard::Command::Action;
    const UnitSizes& unit = units_[command.unit];
    pass_ = command.pass == shard::Pass::kForward ? "forward" : "backward";
    const auto issue_all = [&](JobNumber after) {
      return plan::issue_in_order(
          calls_.of_command(command, unit), after,
          [&](const IssuedCall& call, JobNumber behind) { return issue(index, call, behind); });
    };
    ranks_[index].jobs[command.unit].follow(command, unit, issue_all,
                                            [&](JobNumber job) { wait(index, job); });
    if (index != 0) return;
    if (command.kind == Kind::kGather) note_buffer(command.unit, /*is_taken=*/true);
    if (command.kind == Kind::kReshard) note_buffer(command.unit, /*is_taken=*/false);
  }

  // ---- collectives

  SimulatedCollective& of(JobNumber job) { return collectives_[job - 1]; }

  JobNumber issue(size_t index, const IssuedCall& call, JobNumber after = 0) {
    SimulatedRank& rank = ranks_[index];
    const JobNumber job = ++rank.issued;
    if (job > collectives_.size()) {
      SimulatedCollective& made = collectives_.emplace_back();
      made.queue = call.queue;
      made.after = after;
      made.kind = call.kind;
      if (call.copy_seconds) {
        made.cost = {{.delay_seconds = *call.copy_seconds}};
        made.obstacle = Obstacle::kHost;
      } else {
        made.cost = cost_of(call.call, cluster_.backend, cluster_.network);
        made.obstacle = obstacle_of(made.cost, cluster_.network, cluster_.cores_of_rank);
        times_.bytes_from_other_hosts += times_of_section_ * static_cast<double>(cluster_.ranks_of_host) *
                                         bytes_from_other_hosts(call.call, cluster_.backend);
      }
      queues_[call.queue].push_back(job);
    }
    SimulatedCollective& collective = of(job);
    if (index == 0) {
      collective.event = {.step = 1,
                          .op = call.op(),
                          .unit = call.unit,
                          .pass_or_event = call.pass,
                          .bytes = static_cast<int64_t>(call.call.bytes),
                          .issue_us = kMicroseconds * clock_.now()};
    }
    if (++collective.arrived == ranks_.size()) collective.complete_at = clock_.now();
    return job;
  }

  /// Begins the collectives that are due. Returns whether there were any.
  bool begin_collectives() {
    bool any = false;
    for (auto& [number, queue] : queues_) {
      while (!queue.empty()) {
        const JobNumber job = queue.front();
        SimulatedCollective& collective = of(job);
        if (collective.is_done) {
          queue.pop_front();
          continue;
        }
        const bool is_due = collective.arrived == ranks_.size() && !collective.begun_at &&
                            (collective.after == 0 || of(collective.after).is_done);
        if (!is_due) break;
        collective.begun_at = clock_.now();
        under_way_.push_back(job);
        begin_stage(collective);
        any = true;
        if (!collective.is_done) break;
      }
    }
    return any;
  }

  void begin_stage(SimulatedCollective& collective) {
    while (collective.stage < collective.cost.size()) {
      const Stage& stage = collective.cost[collective.stage];
      const bool computes =
          std::ranges::any_of(ranks_, [](const SimulatedRank& rank) { return rank.computing != 0; });
      const double delay = stage.delay_seconds + (computes ? stage.delay_beside_compute : 0);
      if (delay > 0) {
        collective.is_in_delay = true;
        collective.delay_ends = clock_.now() + delay;
        return;
      }
      if (begin_transfer(collective)) return;
    }
    end(collective);
  }

  /// Begins the transfer of the stage. Returns false if there is nothing to transfer; then the stage is over.
  bool begin_transfer(SimulatedCollective& collective) {
    collective.is_in_delay = false;
    const Stage& stage = collective.cost[collective.stage];
    const double cores = cluster_.cores_of_rank;
    const double seconds = transfer_seconds(stage, cluster_.network, cores);
    if (!(seconds > 0)) {
      ++collective.stage;
      return false;
    }
    std::vector<SharedResources::Use> uses;
    for (const Level level : {Level::kInside, Level::kBetween, Level::kSlices}) {
      const double speed = cluster_.network.at(level).bytes_per_second;
      if (speed > 0 && stage.bytes_at(level) > 0) {
        uses.push_back(
            {links_[static_cast<size_t>(level)], std::min(1.0, stage.bytes_at(level) / speed / seconds)});
        for (const SimulatedRank& rank : ranks_) uses.push_back({rank.attention, cores > 0 ? 1.0 : 0.0});
      }
    }
    if (cores > 0 && stage.core_seconds > 0) {
      const double share = std::min(1.0, stage.core_seconds / seconds / cores);
      for (const SimulatedRank& rank : ranks_) uses.push_back({rank.cores, share});
    }
    collective.transfer = clock_.resources().start(seconds, std::move(uses));
    return true;
  }

  void end(SimulatedCollective& collective) {
    collective.is_done = true;
    collective.event.start_us = kMicroseconds * *collective.begun_at;
    collective.event.done_us = kMicroseconds * clock_.now();
    double& sum = collective.obstacle == Obstacle::kHost ? times_.copies : times_.communication;
    sum += times_of_section_ * (clock_.now() - *collective.begun_at);
  }

  /// Ends the delays and transfers that are due.
  void progress() {
    for (const JobNumber job : under_way_) {
      SimulatedCollective& collective = of(job);
      if (collective.is_in_delay) {
        constexpr double kRounding = 1e-12;
        if (collective.delay_ends - clock_.now() > kRounding * std::max(1.0, clock_.now())) continue;
        if (!begin_transfer(collective)) begin_stage(collective);
      } else if (collective.transfer != 0 && clock_.resources().is_done(collective.transfer)) {
        collective.transfer = 0;
        ++collective.stage;
        begin_stage(collective);
      }
    }
    std::erase_if(under_way_, [this](JobNumber job) { return of(job).is_done; });
  }

  // ---- reports of the first rank

  void note_wait(size_t index) {
    const SimulatedRank& rank = ranks_[index];
    if (index != 0) return;
    SimulatedCollective& collective = of(rank.waiting_for);
    const double waited = clock_.now() - rank.waiting_since;
    const double for_ranks =
        ranks_.size() > 1 ? std::clamp(collective.complete_at - rank.waiting_since, 0.0, waited) : 0;
    times_.exposed += times_of_section_ * waited;
    times_.exposed_by_kind[collective.kind] += times_of_section_ * waited;
    times_.exposed_by_obstacle[static_cast<size_t>(Obstacle::kOtherRanks)] += times_of_section_ * for_ranks;
    times_.exposed_by_obstacle[static_cast<size_t>(collective.obstacle)] +=
        times_of_section_ * (waited - for_ranks);
    note_wait_of(collective, rank.waiting_since);
  }

  void note_wait_of(SimulatedCollective& collective, double since) {
    collective.event.wait_us = kMicroseconds * since;
    if (options_.records && collective.obstacle != Obstacle::kHost) times_.events.push_back(collective.event);
  }

  void note_buffer(size_t unit, bool is_taken) {
    const int64_t bytes = units_[unit].unsharded_bytes();
    if (!options_.records || bytes == 0) return;
    times_.events.push_back({.step = 1,
                             .op = "buffer",
                             .unit = units_[unit].name,
                             .pass_or_event = is_taken ? "allocate" : "free",
                             .bytes = bytes,
                             .issue_us = kMicroseconds * clock_.now(),
                             .buffer_kind = "parameters"});
  }

  void note_stage(const Operation& operation) {
    if (!options_.records) return;
    SimulatedRank& rank = ranks_.front();
    const double now = kMicroseconds * clock_.now();
    if (operation.kind == OperationKind::kEnd) {
      const auto open = rank.open.find(operation.number);
      if (open == rank.open.end()) return;
      comm::TraceEvent& event = times_.events[open->second];
      event.done_us = now;
      event.left_alone = false;
      rank.open.erase(open);
      return;
    }
    rank.open[operation.number] = times_.events.size();
    times_.events.push_back({.step = 1,
                             .op = "compute",
                             .unit = units_[static_cast<size_t>(operation.number)].name,
                             .pass_or_event = operation.what,
                             .issue_us = now,
                             .start_us = now,
                             .left_alone = true});
  }

  const StepProgram& program_;
  const plan::Units& units_;
  const Cluster& cluster_;
  const StepOptions& options_;
  const UnitCalls calls_;
  SimulatedClock clock_;
  std::array<SharedResources::Resource, 3> links_{};  ///< indexed by level
  std::vector<SimulatedRank> ranks_;
  std::deque<SimulatedCollective> collectives_;  ///< indexed by number
  std::map<size_t, std::deque<JobNumber>> queues_;
  std::vector<JobNumber> under_way_;
  const std::vector<Operation>* operations_ = nullptr;
  double times_of_section_ = 1;
  std::string pass_ = "forward";
  StepTimes times_;
};

}  // namespace

StepTimes simulate_step(const StepProgram& program, const plan::Units& units, const Cluster& cluster,
                        const StepOptions& options) {
  return StepRun(program, units, cluster, options).run();
}

}  // namespace fsdp::simulate
