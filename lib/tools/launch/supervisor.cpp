#include "tools/launch/supervisor.h"

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/stop_signal.h"
#include "tools/launch/console.h"
#include "tools/launch/orphan_guard.h"
#include "tools/launch/process.h"
#include "tools/launch/rendezvous.h"
#include "tools/launch/run_folder.h"
#include "tools/launch/signals.h"
#include "tools/launch/worker_group.h"

namespace fsdp::launch {
namespace {

/// Longest time from closed connections of a process to its end. Only its end identifies it as the cause.
constexpr std::chrono::milliseconds kTimeOfCause{500};
/// Time within which workers that were told to stop together, and save together, end.
constexpr std::chrono::milliseconds kTimeToBePreempted{5000};

/// Writes log lines to the console, between the workers' lines, until it is destroyed.
class LogThroughConsole {
 public:
  explicit LogThroughConsole(Console& console) : console_(console) {
    util::set_log_sink([&console](util::LogLevel level, std::string_view message) {
      constexpr const char* kPrefixes[] = {"debug: ", "info: ", "warning: ", "error: ", "error: "};
      console.err().line(nullptr, util::log_line_begin() + kPrefixes[static_cast<size_t>(level)], message);
      console.flush();
    });
  }
  ~LogThroughConsole() {
    console_.settle();
    console_.flush();
    util::set_log_sink({});
  }

 private:
  Console& console_;
};

/// The state of one launch().
class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, ConsoleDescriptors console)
      : options_(options),
        signals_(options.signals),
        console_(console.out, console.err),
        folder_(options.has_stream_files() ? options.log_dir : "",
                options.rendezvous.id.empty() ? "fsdp-launch" : options.rendezvous.id,
                options.has_stream_files()),
        guard_(options.has_stream_files() ? std::filesystem::path() : folder_.path()),
        rendezvous_(make_rendezvous(options)) {}

  int run() {
    LogThroughConsole log(console_);
    if (options_.has_stream_files()) {
      util::log_info(concat("the output of each worker is kept in ", folder_.path().string()));
    }
    const Verdict verdict = run_rounds();
    report(verdict);
    while (console_.has_pending()) step();
    return verdict.exit_code;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Verdict run_rounds() {
    while (!rendezvous_->outcome()) {
      if (auto placement = rendezvous_->take_start()) {
        run_round(std::move(*placement));
      } else {
        step();
      }
    }
    return *rendezvous_->outcome();
  }

  void run_round(NodePlacement placement) {
    placement.terminal_columns = terminal_columns(console_.err().fd());
    stopping_ = false;
    restarts_ = placement.restarts;
    group_ = std::make_unique<WorkerGroup>(GroupSurroundings{options_, console_, folder_, guard_}, placement);
    if (!options_.has_replicas()) group_->start();
    carry_out_orders();
    while (running() > 0 || !group_->pump().is_done() || !rendezvous_->may_end_round()) step();
    console_.settle();
    kill_at_.reset();
    stop_.reset();
    passing_on_.reset();
    tell_of_lost_peers();
    const std::vector<WorkerEnd> ends = group_->ends();
    group_.reset();
    // A process left behind by a worker may hold a port or a GPU that the next round needs.
    guard_.end_marked();
    rendezvous_->round_ended(ends);
  }

  /// Waits for the next event and handles all pending ones.
  void step() {
    std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
    if (group_) group_->pump().add_poll_entries(entries);
    if (group_) group_->add_channel_entries(entries);
    console_.add_poll_entries(entries);
    rendezvous_->add_poll_entries(entries);
    const int ready = ::poll(entries.data(), entries.size(), milliseconds_to_wait());
    FSDP_CHECK(ready >= 0 || errno == EINTR, "poll: ", util::errno_text(errno));

    if (ready > 0) {
      if (group_) group_->pump().read_ready(entries);
      for (int signal : signals_.take()) handle_signal(signal);
    }
    pass_on_reports();
    rendezvous_->step();
    carry_out_orders();
    if (const auto reason = rendezvous_->stop_reason(); reason && running() > 0)
      rendezvous_->is_cut_off() ? kill_workers(reason->text) : stop_workers(*reason);
    if (group_) group_->pump().show_paused();
    if (group_) group_->send_waiting();
    if (stop_ && Clock::now() >= stop_->at) stop_workers({stop_->reason});
    if (passing_on_ && Clock::now() >= passing_on_->at) pass_on_stop(passing_on_->reason);
    kill_if_overdue();
    console_.flush();
    warn_of_lost_console();
  }

  int milliseconds_to_wait() const {
    int wait =
        sooner(group_ ? group_->pump().milliseconds_to_pause() : -1, rendezvous_->milliseconds_to_wait());
    if (group_) wait = sooner(wait, sooner(group_->milliseconds_to_wait(), console_.milliseconds_to_stall()));
    if (kill_at_) wait = sooner(wait, milliseconds_until(*kill_at_));
    if (stop_) wait = sooner(wait, milliseconds_until(stop_->at));
    if (passing_on_) wait = sooner(wait, milliseconds_until(passing_on_->at));
    return wait;
  }

  void handle_signal(int signal) {
    if (signal == SIGCHLD) {
      reap_workers();
      reap_orphans([this](pid_t pid) { return pid == guard_.pid() || (group_ && group_->has_process(pid)); });
      return;
    }
    const bool may_repeat = signal == SIGTERM || signal == SIGINT;
    const bool stops = signal != SIGUSR1 && signal != SIGUSR2;
    if (may_repeat) {
      // The same request a second time: GNU timeout, for example, signals the launcher and its process group.
      if (told_at_ && Clock::now() - *told_at_ < util::kOneRequest) return;
      told_at_ = Clock::now();
    }
    if (running() == 0) {
      const bool gathers = !group_ && !rendezvous_->outcome();
      // Otherwise only output is left that its reader does not take.
      if (may_repeat && !gathers) console_.discard();
      if (stops) rendezvous_->leave(signal);
      return;
    }
    if (may_repeat && told_to_stop_ != 0) {
      util::log_warning(concat("received ", signal_name(signal), " again: killing the workers"));
      return kill_all();
    }
    group_->pass_on(signal);
    if (may_repeat) {
      told_to_stop_ = signal;
      util::log_info(concat("received ", signal_name(signal), ", passed it on to ", running(),
                            running() == 1 ? " worker" : " workers", ", which will be killed in ",
                            options_.shutdown_timeout_seconds,
                            " seconds (--shutdown-timeout) or at the next ", signal_name(signal)));
    }
    if (stops) {
      stopping_ = true;
      rendezvous_->leave(signal);
      start_clock();
    }
  }

  void reap_workers() {
    ++ends_seen_;
    if (!group_) return;
    if (options_.has_replicas()) {
      // Handles a worker's last report before its end.
      pass_on_reports();
      for (const WorkerEnd& end : group_->reap(ends_seen_)) rendezvous_->worker_ended(end);
      return;
    }
    const auto reason = [](const WorkerEnd& end) { return concat(name_of(end), " ", ending(end.status)); };
    const std::vector<WorkerEnd> ended = group_->reap(ends_seen_);
    for (const WorkerEnd& end : ended) {
      if (kind_of(end) != EndKind::kPeerLost) {
        rendezvous_->worker_ended(end);
        if (was_preempted(end) && !passing_on_)
          passing_on_ = {Clock::now() + kTimeToBePreempted, reason(end)};
      } else {
        lost_peers_.push_back(end);
        if (!stop_) stop_ = {Clock::now() + kTimeOfCause, reason(end)};
      }
    }
    const std::optional<WorkerEnd> culprit = judge(ended).culprit;
    if (culprit && kind_of(*culprit) != EndKind::kPeerLost) stop_workers({reason(*culprit)});
  }

  void pass_on_reports() {
    if (!group_) return;
    for (const WorkerGroup::ChannelLine& line : group_->take_lines()) {
      const std::optional<Message> message = parse_message(line.text);
      try {
        WorkerReport report = report_from(message.value());
        report.port = free_port();
        rendezvous_->worker_said(line.rank, line.incarnation, report);
      } catch (const std::exception&) {
        util::log_warning(concat("rank ", line.rank, " sent a line over ", kChannelVariable,
                                 " that is not a message of tools/launch/epoch.h; it is ignored"));
      }
    }
  }

  void carry_out_orders() {
    while (auto order = group_ ? rendezvous_->take_order() : std::nullopt) carry_out(*order);
  }

  void carry_out(const WorkerOrder& order) {
    for (int rank : order.ranks) {
      if (order.kind == WorkerOrder::OrderKind::kKill) group_->kill(rank, order.incarnation);
      if (order.kind == WorkerOrder::OrderKind::kTell) group_->tell(rank, order.incarnation, order.line);
      if (order.kind != WorkerOrder::OrderKind::kStart || stopping_) continue;
      try {
        group_->start(rank, order.incarnation);
      } catch (const util::Error& error) {
        // In the first incarnation it is a mistake of the user. Later, the other replicas continue.
        if (order.incarnation == 1) throw;
        util::log_error(error.what());
        rendezvous_->worker_ended({.rank = rank,
                                   .status = {.exit_code = static_cast<int>(ErrorKind::kUnexpected)},
                                   .incarnation = order.incarnation});
      }
    }
  }

  /// Reports lost peers after their cause, if it is known, because other nodes stop for the first reported
  /// end.
  void tell_of_lost_peers() {
    for (const WorkerEnd& end : std::exchange(lost_peers_, {})) rendezvous_->worker_ended(end);
  }

  // The reason is passed by value here and below, because it may be part of stop_ or passing_on_, which are
  // reset.
  void pass_on_stop(const std::string reason) {
    passing_on_.reset();
    if (stopping_ || running() == 0) return;
    util::log_info(concat(reason, ", and ", running(),
                          running() == 1 ? " other worker is" : " other workers are",
                          " still running: sending SIGTERM to the rest too"));
    group_->send_to_all(SIGTERM);
  }

  void stop_workers(const StopReason reason) {
    stop_.reset();
    tell_of_lost_peers();
    if (stopping_ || running() == 0) return;
    util::log_warning(concat(reason.text, ": stopping ", running(),
                             group_->size() == running() ? "" : " other",
                             running() == 1 ? " worker" : " workers", ", which will be killed in ",
                             options_.shutdown_timeout_seconds, " seconds (--shutdown-timeout)"));
    stopping_ = true;
    if (reason.is_failure) group_->mark_told_after_failure();
    group_->send_to_all(SIGTERM);
    start_clock();
  }

  void kill_workers(const std::string& reason) {
    if (std::exchange(stopping_, true)) return;
    util::log_warning(concat(reason, ": killing ", running(), running() == 1 ? " worker" : " workers"));
    kill_all();
  }

  void kill_if_overdue() {
    if (!kill_at_ || Clock::now() < *kill_at_) return;
    if (group_) {
      for (const std::string& name : group_->names_of_running()) {
        util::log_warning(concat(name, " is still running ", options_.shutdown_timeout_seconds,
                                 " seconds after it was told to stop: killing it"));
      }
    }
    kill_all();
  }

  void start_clock() {
    if (kill_at_) return;
    const std::chrono::duration<double> timeout(options_.shutdown_timeout_seconds);
    kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  }

  void kill_all() {
    if (group_) group_->send_to_all(SIGKILL);
    kill_at_.reset();
  }

  void warn_of_lost_console() {
    if (warned_of_console_) return;
    for (const auto& [stream, name] :
         {std::pair(&console_.out(), "standard output"), std::pair(&console_.err(), "standard error")}) {
      if (stream->failure() == 0) continue;
      warned_of_console_ = true;
      util::log_warning(concat("cannot write to the launcher's ", name, " (",
                               util::errno_text(stream->failure()),
                               "): the output of the workers to it is dropped from now on; they continue"));
    }
  }

  void report(const Verdict& verdict) {
    if (!verdict.cause.empty()) return util::log_error(verdict.cause);
    if (!verdict.culprit) return;
    const WorkerEnd& end = *verdict.culprit;
    if (kind_of(end) == EndKind::kStopped) {
      util::log_warning(concat("told to stop: ", name_of(end), " ", ending(end.status)));
      return;
    }
    // A user's mistake was reported just above.
    const bool is_shown = end.status == ExitStatus{.exit_code = static_cast<int>(ErrorKind::kUsage)} &&
                          end.log_path.empty() && options_.local_ranks_filter.empty() &&
                          !options_.is_multi_node();
    std::string last_lines;
    if (!is_shown) {
      for (const std::string& line : end.last_lines) last_lines += "\n    " + line;
    }
    if (!last_lines.empty()) util::log_error(concat("last output of rank ", end.rank, ":", last_lines));
    // This library's programs also log their message. Other programs may only write it to the error file.
    if (!is_shown && !end.message.empty() && last_lines.find(end.message) == std::string::npos) {
      util::log_error(concat("rank ", end.rank, " reports: ", end.message));
    }
    const bool alone = options_.nproc_per_node == 1 && !options_.is_multi_node();
    util::log_error(concat(name_of(end), alone ? " failed: it " : " failed first: it ", ending(end.status),
                           end.status.signal == SIGKILL ? ", as the kernel does when memory runs out" : "",
                           options_.max_restarts > 0
                               ? concat(", after ", restarts_, restarts_ == 1 ? " restart" : " restarts",
                                        " of ", options_.max_restarts, " (--max-restarts)")
                               : "",
                           end.log_path.empty() ? "" : "; its output is in " + end.log_path));
  }

  int running() const { return group_ ? group_->running() : 0; }

  const LaunchOptions options_;
  SignalWatch signals_;
  Console console_;
  RunFolder folder_;
  OrphanGuard guard_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<WorkerGroup> group_;        ///< workers of the current round
  int restarts_ = 0;                          ///< restarts of all workers before the current round
  int ends_seen_ = 0;                         ///< how often workers were found to have ended
  bool stopping_ = false;                     ///< whether the workers were told to end, for any reason
  int told_to_stop_ = 0;                      ///< the first SIGINT or SIGTERM; a second one kills
  std::optional<Clock::time_point> told_at_;  ///< when the last SIGINT or SIGTERM arrived
  bool warned_of_console_ = false;
  std::optional<Clock::time_point> kill_at_;
  /// An action that is taken later unless the workers stop first.
  struct Due {
    Clock::time_point at;
    std::string reason;
  };
  std::optional<Due> stop_, passing_on_;
  std::vector<WorkerEnd> lost_peers_;  ///< ends not yet reported to the other nodes
};

}  // namespace

int launch(const LaunchOptions& options, ConsoleDescriptors console) {
  validate(options);
  open_standard_descriptors();
  return Supervisor(options, console).run();
}

}  // namespace fsdp::launch
