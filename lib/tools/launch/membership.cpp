#include "tools/launch/membership.h"

#include <algorithm>
#include <utility>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"

namespace fsdp::launch {
namespace {

/// Number of consecutive epochs that may be broken off without a step before a suspect is considered lost.
constexpr int kMostFruitless = 2;

std::string numbered(const char* noun, const std::vector<int>& numbers) {
  std::vector<std::string> texts;
  for (int number : numbers) texts.push_back(std::to_string(number));
  return concat(noun, texts.size() == 1 ? " " : "s ", util::join(texts, ", "));
}

}  // namespace

Membership::Membership(Settings settings)
    : settings_(std::move(settings)), replicas_(static_cast<size_t>(settings_.replicas)) {
  for (Replica& each : replicas_) each.workers.resize(static_cast<size_t>(settings_.replica_size));
}

Membership::ReplicaWorker& Membership::worker(int rank) {
  return replica(rank / settings_.replica_size).workers[static_cast<size_t>(rank % settings_.replica_size)];
}

std::vector<int> Membership::in_state(ReplicaState state) const {
  std::vector<int> numbers;
  for (int number = 0; number < settings_.replicas; ++number) {
    if (replica(number).state == state) numbers.push_back(number);
  }
  return numbers;
}

bool Membership::is_member(int number) const { return replica(number).state == ReplicaState::kMember; }

bool Membership::is_lost(int number) const {
  return replica(number).state == ReplicaState::kAbsent || replica(number).state == ReplicaState::kFenced;
}

bool Membership::is_given_up(int number) const {
  return is_lost(number) &&
         (replica(number).is_hopeless || replica(number).incarnation > settings_.max_restarts);
}

bool Membership::has_stopped(int number) const {
  return std::ranges::all_of(replica(number).workers,
                             [](const ReplicaWorker& each) { return each.stopped.has_value(); });
}

/// Whether the replica has a worker without state. Requires: has_stopped(number).
bool Membership::lacks_state(int number) const {
  return std::ranges::any_of(replica(number).workers,
                             [](const ReplicaWorker& each) { return each.stopped->step < 0; });
}

/// Whether a worker has done all steps, so that no replica can join any more.
bool Membership::is_ending() const {
  return std::ranges::any_of(replicas_, [](const Replica& each) {
    const bool counts = each.state == ReplicaState::kMember || each.state == ReplicaState::kFinished;
    return counts && std::ranges::any_of(each.workers, &ReplicaWorker::has_finished);
  });
}

std::string Membership::ranks_that_have_not(bool (*done)(const ReplicaWorker&), int number) const {
  std::vector<int> ranks;
  for (int index = 0; index < settings_.replica_size; ++index) {
    if (!done(replica(number).workers[static_cast<size_t>(index)])) {
      ranks.push_back(number * settings_.replica_size + index);
    }
  }
  return numbered("rank", ranks);
}

std::string Membership::name_of(int number) const {
  const int first = number * settings_.replica_size, last = first + settings_.replica_size - 1;
  return concat("replica ", number, " (rank",
                first == last ? concat(" ", first) : concat("s ", first, " to ", last), ")");
}

void Membership::said(int rank, int incarnation, const WorkerReport& report, Time now) {
  const int number = rank / settings_.replica_size;
  Replica& own = replica(number);
  ReplicaWorker& speaker = worker(rank);
  if (own.incarnation != incarnation || !speaker.runs || is_over()) return;
  speaker.port = report.port;
  if (report.kind == WorkerReport::ReportKind::kReady && own.state == ReplicaState::kStarting) {
    speaker.is_ready = true;
    if (std::ranges::all_of(own.workers, &ReplicaWorker::is_ready)) own.state = ReplicaState::kReady;
  } else if (report.kind == WorkerReport::ReportKind::kStopped && own.state == ReplicaState::kMember &&
             report.epoch == epoch_.number && !speaker.stopped) {
    speaker.stopped = report;
    if (phase_ == EpochPhase::kPausing)
      stop_by_ = std::min(stop_by_, now + util::duration_of(settings_.pause_grace_seconds));
    if (phase_ == EpochPhase::kRunning || (phase_ == EpochPhase::kPausing && !report.suspects.empty())) {
      std::vector<int> homes;
      for (int suspect : report.suspects) {
        if (suspect < 0 || suspect >= epoch_.world_size()) continue;
        const int member = epoch_.replicas[static_cast<size_t>(suspect / settings_.replica_size)];
        homes.push_back(member * settings_.replica_size + suspect % settings_.replica_size);
      }
      const std::string why = concat("rank ", rank, " cannot continue",
                                     homes.empty() ? "" : concat(": it waits for ", numbered("rank", homes)));
      util::log_warning(why);
      break_off(why, now);
    }
  }
  advance(now);
}

void Membership::ended(int rank, int incarnation, const WorkerEnd& end, Time now) {
  const int number = rank / settings_.replica_size;
  Replica& own = replica(number);
  ReplicaWorker& speaker = worker(rank);
  if (own.incarnation != incarnation || !speaker.runs) return;
  speaker.runs = false;
  const EndKind kind = kind_of(end);
  if (own.state == ReplicaState::kFenced) {
    if (std::ranges::none_of(own.workers, &ReplicaWorker::runs)) own.state = ReplicaState::kAbsent;
  } else if (kind == EndKind::kFinished && (own.state == ReplicaState::kMember || was_preempted(end))) {
    preempted_ |= was_preempted(end);
    speaker.has_finished = true;
    if (!ending_since_) ending_since_ = now;
    if (std::ranges::all_of(own.workers, &ReplicaWorker::has_finished)) own.state = ReplicaState::kFinished;
  } else if (kind == EndKind::kFinished && !speaker.is_ready && !is_over()) {
    phase_ = EpochPhase::kOver;
    settings_.over(
        {.exit_code = static_cast<int>(ErrorKind::kUsage),
         .cause = concat(fsdp::launch::name_of(end),
                         " ended before it reported that it is ready, as programs under --replica-size must; "
                         "start this program without --replica-size")});
  } else {
    if (kind != EndKind::kFinished) (failures_[rank] = end).round = ++events_;
    own.is_hopeless |= !may_end_differently({.exit_code = end.status.code(), .culprit = end});
    lose(number, concat(fsdp::launch::name_of(end), " ", ending(end.status)), now);
  }
  advance(now);
}

void Membership::node_lost(int first_rank, int workers, const std::string& why, bool silent, Time now) {
  std::vector<int> touched;
  for (int rank = first_rank; rank < first_rank + workers; ++rank) {
    worker(rank).has_node = worker(rank).runs = false;
    const int number = rank / settings_.replica_size;
    if (touched.empty() || touched.back() != number) touched.push_back(number);
  }
  for (int number : touched) {
    Replica& each = replica(number);
    if (each.state == ReplicaState::kFinished) continue;
    // A replica that was lost a moment ago may also have been the last with the state.
    if (silent && each.state != ReplicaState::kAbsent) {
      state_lives_until_ = std::max(state_lives_until_, now + util::duration_of(settings_.fence_seconds));
    }
    if (each.state == ReplicaState::kFenced) {
      if (std::ranges::none_of(each.workers, &ReplicaWorker::runs)) each.state = ReplicaState::kAbsent;
    } else if (each.state != ReplicaState::kAbsent) {
      lose(number, why, now);
    }
  }
  advance(now);
}

void Membership::node_found(int first_rank, int workers, Time now) {
  for (int rank = first_rank; rank < first_rank + workers; ++rank) worker(rank).has_node = true;
  advance(now);
}

void Membership::lose(int number, const std::string& why, Time now) {
  Replica& lost = replica(number);
  const bool was_member = lost.state == ReplicaState::kMember;
  const bool runs = std::ranges::any_of(lost.workers, &ReplicaWorker::runs);
  lost.state = runs ? ReplicaState::kFenced : ReplicaState::kAbsent;
  if (is_over()) return;
  const std::string next =
      is_ending()           ? "the run is about to end"
      : lost.is_hopeless    ? "the failure would recur, so it is not restarted"
      : is_given_up(number) ? concat("it is not started again (--max-restarts ", settings_.max_restarts, ")")
                            : concat("starting it again, restart ", lost.incarnation, " of ",
                                     settings_.max_restarts, " (--max-restarts)");
  util::log_warning(concat(name_of(number), " is lost: ", why, "; ", next));
  if (runs) settings_.fence(number, lost.incarnation);
  if (!was_member) return;
  explained_ = true;
  if (phase_ == EpochPhase::kWaiting) waiting_since_ = now;
  const bool is_in_epoch = phase_ == EpochPhase::kRunning || phase_ == EpochPhase::kPausing;
  if (is_in_epoch) break_off(concat(name_of(number), " is lost"), now);
}

void Membership::break_off(const std::string& why, Time now) {
  phase_ = EpochPhase::kStopping;
  stop_by_ = now + util::duration_of(settings_.stop_timeout_seconds);
  for (int number : in_state(ReplicaState::kMember)) {
    if (!has_stopped(number)) settings_.break_off(number, replica(number).incarnation, why);
  }
}

void Membership::advance(Time now) {
  now_ = now;
  while (!is_over() && advance_once(now)) {
  }
}

bool Membership::advance_once(Time now) {
  start_absent(now);
  if (lose_slow_starters(now) || lose_slow_finishers(now)) return true;
  const std::vector<int> members = in_state(ReplicaState::kMember);
  const bool is_in_epoch = phase_ == EpochPhase::kRunning || phase_ == EpochPhase::kPausing;
  if (is_in_epoch && members.empty()) {
    phase_ = EpochPhase::kWaiting;
    waiting_since_ = now;
    return true;
  }
  switch (phase_) {
    case EpochPhase::kRunning:
      if (in_state(ReplicaState::kReady).empty() || is_ending()) return false;
      phase_ = EpochPhase::kPausing;
      explained_ = true;
      // A step may be long, but a worker that hangs now must be found.
      stop_by_ = now + util::duration_of(settings_.join_timeout_seconds);
      for (int number : members) settings_.pause(number, replica(number).incarnation);
      return true;
    case EpochPhase::kPausing:
      if (std::ranges::all_of(members, [&](int number) { return has_stopped(number); })) {
        phase_ = EpochPhase::kWaiting;
        waiting_since_ = now;
        return true;
      }
      if (now >= stop_by_) {
        break_off("not all workers have stopped between two steps", now);
        return true;
      }
      return false;
    case EpochPhase::kStopping:
      return collect_stops(now);
    case EpochPhase::kWaiting:
      return form_if_possible(now);
    case EpochPhase::kOver:
      break;
  }
  return false;
}

void Membership::start_absent(Time now) {
  if (is_ending()) return;
  for (int number : in_state(ReplicaState::kAbsent)) {
    Replica& absent = replica(number);
    if (is_given_up(number) || !std::ranges::all_of(absent.workers, &ReplicaWorker::has_node)) continue;
    absent.state = ReplicaState::kStarting;
    absent.since = now;
    ++absent.incarnation;
    for (ReplicaWorker& each : absent.workers) each = {.runs = true};
    settings_.start(number, absent.incarnation);
  }
}

bool Membership::lose_slow_starters(Time now) {
  bool lost = false;
  for (int number : in_state(ReplicaState::kStarting)) {
    if (now < replica(number).since + util::duration_of(settings_.join_timeout_seconds)) continue;
    const auto is_ready = [](const ReplicaWorker& each) { return each.is_ready; };
    lose(number,
         concat("waited ", settings_.join_timeout_seconds, " seconds (join_timeout of --rdzv-conf) for ",
                ranks_that_have_not(is_ready, number),
                " to report that it is ready, as programs under --replica-size do"),
         now);
    lost = true;
  }
  return lost;
}

bool Membership::lose_slow_finishers(Time now) {
  if (!ending_since_ || now < *ending_since_ + util::duration_of(settings_.join_timeout_seconds))
    return false;
  ending_since_.reset();
  const std::vector<int> members = in_state(ReplicaState::kMember);
  for (int number : members) {
    const auto has_finished = [](const ReplicaWorker& each) { return each.has_finished; };
    lose(number,
         concat(ranks_that_have_not(has_finished, number), " did not end within ",
                settings_.join_timeout_seconds,
                " seconds (join_timeout of --rdzv-conf) after the first that had done all steps"),
         now);
  }
  return !members.empty();
}

/// Handles reports while the epoch is being broken off. Returns whether anything has changed.
bool Membership::collect_stops(Time now) {
  bool pending = false;
  std::vector<std::pair<int, std::string>> lost;
  for (int number : in_state(ReplicaState::kMember)) {
    if (has_stopped(number)) continue;
    const auto has_answered = [](const ReplicaWorker& each) { return each.stopped || each.has_finished; };
    const auto& workers = replica(number).workers;
    if (std::ranges::all_of(workers, has_answered)) {
      lost.emplace_back(number,
                        "some of its workers have finished, and the others cannot finish without them");
    } else if (now >= stop_by_) {
      lost.emplace_back(number,
                        concat("no report within ", settings_.stop_timeout_seconds,
                               " seconds (--stop-timeout) from ", ranks_that_have_not(has_answered, number)));
    } else {
      pending = true;
    }
  }
  for (const auto& [number, why] : lost) lose(number, why, now);
  if (pending) return !lost.empty();
  lose_if_fruitless(now);
  phase_ = EpochPhase::kWaiting;
  waiting_since_ = now;
  return true;
}

/// Forms the next epoch, between two epochs, if it is possible. Returns whether anything has changed.
bool Membership::form_if_possible(Time now) {
  for (int number : in_state(ReplicaState::kMember)) {
    // The replica joined an epoch that ended before it had the state.
    if (!lacks_state(number)) continue;
    replica(number).state = ReplicaState::kReady;
    for (ReplicaWorker& each : replica(number).workers) each.stopped.reset();
  }
  const std::vector<int> holders = in_state(ReplicaState::kMember);
  const bool is_done = !in_state(ReplicaState::kFinished).empty();
  if (holders.empty() && is_done) {
    phase_ = EpochPhase::kOver;
    settings_.over({.exit_code = preempted_ ? util::kExitPreempted : 0});
    return true;
  }
  if (holders.empty() && now < state_lives_until_) return false;
  std::vector<int> fresh = in_state(ReplicaState::kReady);
  if (is_done) fresh.clear();
  std::vector<int> members;
  std::ranges::merge(holders, fresh, std::back_inserter(members));
  const auto present = static_cast<int>(members.size());
  int left = 0;
  for (int number = 0; number < settings_.replicas; ++number) left += !is_given_up(number);
  const bool is_late = now >= waiting_since_ + util::duration_of(settings_.join_timeout_seconds);
  const bool is_enough = present >= settings_.min_replicas || is_done;
  if (is_enough && !holders.empty()) return continue_from(holders, members, now);
  // A process that is still being killed could continue with the state that others read from the checkpoint.
  if (is_enough && in_state(ReplicaState::kFenced).empty() && (present == left || is_late)) {
    form(members, -1, {});
    return true;
  }
  if (left < settings_.min_replicas) {
    give_up(left, "can continue");
  } else if (is_late) {
    give_up(present,
            concat("came within ", settings_.join_timeout_seconds, " seconds (join_timeout of --rdzv-conf)"));
  }
  return is_over();
}

bool Membership::continue_from(const std::vector<int>& holders, const std::vector<int>& members, Time now) {
  int64_t step = 0;
  for (int number : holders) {
    for (const ReplicaWorker& each : replica(number).workers) step = std::max(step, each.stopped->step);
  }
  const std::vector<int> givers = givers_of(step, holders);
  if (givers.empty()) {
    for (int number : holders) {
      lose(number, concat("no replica has all of the state after step ", step, " any more"), now);
    }
    return true;
  }
  form(members, step, givers);
  return true;
}

/// Finds, for each index in a replica, a replica that has that part of the state after `step`. Empty if some
/// part is lost.
std::vector<int> Membership::givers_of(int64_t step, const std::vector<int>& holders) const {
  std::vector<int> givers;
  for (size_t index = 0; index < static_cast<size_t>(settings_.replica_size); ++index) {
    const auto report = [&](int number) { return *replica(number).workers[index].stopped; };
    auto giver = std::ranges::find_if(holders, [&](int number) { return report(number).step == step; });
    if (giver == holders.end()) {
      giver = std::ranges::find_if(holders, [&](int number) {
        return report(number).step == step - 1 && report(number).can_finish_step;
      });
    }
    if (giver == holders.end()) return {};
    givers.push_back(*giver);
  }
  return givers;
}

/// Loses the most suspected replica after several epochs without a step: links between nodes that answer may
/// be broken, and the same epoch would fail again.
void Membership::lose_if_fruitless(Time now) {
  const std::vector<int> holders = in_state(ReplicaState::kMember);
  int64_t step = -1;
  for (int number : holders) {
    for (const ReplicaWorker& each : replica(number).workers) step = std::max(step, each.stopped->step);
  }
  // In an epoch that began from a checkpoint, some replicas may have read it while others have not.
  const bool has_begun =
      epoch_.step >= 0 || std::ranges::none_of(holders, [&](int number) { return lacks_state(number); });
  const bool is_fruitless = !explained_ && !holders.empty() && (step <= epoch_.step || !has_begun);
  if (!is_fruitless) fruitless_ = 0;
  if (!is_fruitless || ++fruitless_ <= kMostFruitless) return;
  fruitless_ = 0;
  std::map<int, int> accusers;
  for (int accuser : holders) {
    std::set<int> accused;
    for (const ReplicaWorker& each : replica(accuser).workers) {
      for (int rank : each.stopped->suspects) {
        if (rank < 0 || rank >= epoch_.world_size()) continue;
        accused.insert(epoch_.replicas[static_cast<size_t>(rank / settings_.replica_size)]);
      }
    }
    for (int number : accused) ++accusers[number];
  }
  // Prefers a replica without the state, so that no replica with the state is lost needlessly.
  int worst = holders.front();
  for (int number : holders) {
    if (std::pair(lacks_state(number), accusers[number]) >= std::pair(lacks_state(worst), accusers[worst]))
      worst = number;
  }
  lose(worst,
       concat(kMostFruitless + 1, " attempts to continue", step < 0 ? "" : concat(" after step ", step),
              " have failed, and ", accusers[worst], " replicas waited for it"),
       now);
}

void Membership::form(std::vector<int> members, int64_t step, const std::vector<int>& givers) {
  Epoch next{.number = epoch_.number + 1,
             .replicas = std::move(members),
             .replica_size = settings_.replica_size,
             .min_replicas = settings_.min_replicas,
             .step = step};
  next.master_port = replica(next.replicas.front()).workers.front().port;
  for (size_t index = 0; index < givers.size(); ++index) {
    next.sources.push_back(next.rank_of(givers[index] * settings_.replica_size + static_cast<int>(index)));
  }
  for (int number : next.replicas) {
    Replica& member = replica(number);
    for (int index = 0; step >= 0 && index < settings_.replica_size; ++index) {
      const auto& report = member.workers[static_cast<size_t>(index)].stopped;
      const bool has_it =
          report && (report->step == step || (report->step == step - 1 && report->can_finish_step));
      if (!has_it) next.behind.push_back(next.rank_of(number * settings_.replica_size + index));
    }
  }
  for (int number : next.replicas) {
    replica(number).state = ReplicaState::kMember;
    for (ReplicaWorker& each : replica(number).workers) each.stopped.reset();
  }
  epoch_ = std::move(next);
  phase_ = EpochPhase::kRunning;
  explained_ = false;
  ending_since_.reset();
  if (epoch_.number > 1) {
    util::log_info(concat(numbered("replica", epoch_.replicas), " of ", settings_.replicas, " continue ",
                          step < 0 ? "from the newest checkpoint" : concat("after step ", step), " (epoch ",
                          epoch_.number, ")"));
  }
  for (int number : epoch_.replicas) settings_.begin(number, replica(number).incarnation, epoch_);
}

/// Ends the run because only `replicas_left` replicas are left, fewer than needed.
void Membership::give_up(int replicas_left, const std::string& what) {
  phase_ = EpochPhase::kOver;
  std::vector<WorkerEnd> ends;
  for (const auto& [rank, end] : failures_) ends.push_back(end);
  Verdict verdict = judge(ends);
  // If no replica is left, the end of the failed worker explains more than a sentence about replicas.
  if (replicas_left > 0 || !verdict.culprit) {
    verdict.cause = concat("only ", replicas_left, " of ", settings_.replicas, " replicas ", what,
                           ", but at least ", settings_.min_replicas, " must (--min-replicas)");
    if (const auto& end = verdict.culprit) {
      verdict.cause += concat("; ", fsdp::launch::name_of(*end), " ", ending(end->status));
    } else {
      verdict.exit_code = static_cast<int>(ErrorKind::kPeerLost);
    }
  }
  settings_.over(verdict);
}

std::optional<Membership::Time> Membership::next_due() const {
  std::optional<Time> due;
  const auto consider = [&](Time at) {
    if (at > now_ && (!due || at < *due)) due = at;
  };
  if (is_over()) return due;
  const auto join_timeout = util::duration_of(settings_.join_timeout_seconds);
  for (int number : in_state(ReplicaState::kStarting)) consider(replica(number).since + join_timeout);
  if (ending_since_) consider(*ending_since_ + join_timeout);
  if (phase_ == EpochPhase::kPausing || phase_ == EpochPhase::kStopping) consider(stop_by_);
  if (phase_ == EpochPhase::kWaiting) {
    consider(waiting_since_ + join_timeout);
    consider(state_lives_until_);
  }
  return due;
}

}  // namespace fsdp::launch
