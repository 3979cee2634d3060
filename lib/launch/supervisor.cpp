#include "launch/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>

#include "launch/process.h"
#include "launch/terminal.h"
#include "launch/worker_environment.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::launch {
namespace {

using util::concat;

/// While it lives, log lines take their turn on the console with the workers' lines.
class LogThroughConsole {
 public:
  explicit LogThroughConsole(Console& console) : console_(console) {
    util::set_log_sink([&console](util::LogLevel level, std::string_view message) {
      console.err().line(nullptr, name_of(level), message);
      console.flush();
    });
  }
  ~LogThroughConsole() {
    console_.settle();
    console_.flush();
    util::set_log_sink({});
  }

 private:
  static std::string_view name_of(util::LogLevel level) {
    switch (level) {
      case util::LogLevel::kDebug:
        return "debug: ";
      case util::LogLevel::kInfo:
        return "info: ";
      case util::LogLevel::kWarning:
        return "warning: ";
      default:
        return "error: ";
    }
  }
  Console& console_;
};

std::string ending(const ExitStatus& status) {
  if (status.signal == 0) return concat("ended with exit code ", status.exit_code);
  return concat("was ended by ", signal_name(status.signal));
}

}  // namespace

int launch(const LaunchOptions& options, ConsoleDescriptors console) {
  validate(options);
  open_standard_descriptors();
  return Supervisor(options, console).run();
}

Supervisor::Supervisor(const LaunchOptions& options, ConsoleDescriptors console)
    : options_(options),
      console_(console.out, console.err),
      pump_(console_, options.log_dir, options.node_rank * options.nproc_per_node, options.nproc_per_node) {}

Supervisor::~Supervisor() {
  kill_all();
  for (Worker& worker : workers_) {
    if (worker.is_running) wait_and_reap(worker.pid);
  }
}

int Supervisor::run() {
  LogThroughConsole log(console_);
  start_workers();
  while (any_running() || !pump_.is_done()) step();
  console_.settle();
  const Verdict verdict = judge(ends_);
  report(verdict);
  while (console_.has_pending()) step();
  return verdict.exit_code;
}

void Supervisor::start_workers() {
  const NodePlacement placement{
      .node_rank = options_.node_rank,
      .nodes = options_.nnodes,
      .workers_per_node = options_.nproc_per_node,
      .master_addr = options_.master_addr,
      .master_port = options_.master_port ? options_.master_port : free_port(),
      .run_id = new_run_id(),
      .terminal_columns = terminal_columns(console_.err().fd()),
  };
  const std::vector<std::string> inherited = current_environment();
  for (int index = 0; index < options_.nproc_per_node; ++index) {
    Process process = spawn({.argv = options_.program,
                             .environment = worker_environment(placement, index, inherited),
                             // A terminal would stop a worker that reads it from its own process group.
                             .inherit_stdin = index == 0 && !::isatty(STDIN_FILENO)});
    workers_.push_back({.rank = options_.node_rank * options_.nproc_per_node + index, .pid = process.pid});
    ++running_;
    pump_.attach(index, std::move(process.out), std::move(process.err));
  }
}

void Supervisor::step() {
  std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
  pump_.add_poll_entries(entries);
  console_.add_poll_entries(entries);
  const int ready = ::poll(entries.data(), entries.size(), milliseconds_to_wait());
  FSDP_CHECK(ready >= 0 || errno == EINTR, "poll: ", util::errno_text(errno));

  if (ready > 0) {
    pump_.read_ready(entries);
    for (int signal : signals_.take()) handle_signal(signal);
  }
  pump_.show_paused();
  kill_if_overdue();
  console_.flush();
  warn_of_lost_console();
}

int Supervisor::milliseconds_to_wait() const {
  int wait = pump_.milliseconds_to_pause();
  if (kill_at_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count();
    const int bounded = static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
    wait = wait < 0 ? bounded : std::min(wait, bounded);
  }
  return wait;
}

void Supervisor::handle_signal(int signal) {
  if (signal == SIGCHLD) return reap_workers();
  const bool stops = signal == SIGTERM || signal == SIGINT;
  if (!any_running()) {
    // Only output is left, and its reader does not take it.
    if (stops) console_.discard();
    return;
  }
  if (stops && told_to_stop_) {
    util::log_warning(concat("received ", signal_name(signal), " again: killing the workers"));
    return kill_all();
  }
  send_to_all(signal);
  if (stops) {
    told_to_stop_ = true;
    util::log_info(concat("received ", signal_name(signal), ", passed it on to ", running_,
                          running_ == 1 ? " worker" : " workers", ", to be killed in ",
                          options_.shutdown_timeout_seconds, " seconds (--shutdown-timeout) or by another ",
                          signal_name(signal)));
  }
  if (stops || signal == SIGHUP) {
    stopping_ = true;
    start_clock();
  }
}

void Supervisor::reap_workers() {
  ++round_;
  for (size_t index = 0; index < workers_.size(); ++index) {
    Worker& worker = workers_[index];
    if (!worker.is_running) continue;
    const std::optional<ExitStatus> status = reap(worker.pid);
    if (!status) continue;
    worker.is_running = false;
    --running_;
    pump_.worker_ended(static_cast<int>(index));
    ends_.push_back({worker.rank, worker.pid, *status, round_, worker.stop_signals_sent});
  }
  const Verdict so_far = judge(ends_);
  if (so_far.culprit && any_running() && !stopping_) stop_others(*so_far.culprit);
}

void Supervisor::stop_others(const WorkerEnd& failed) {
  util::log_warning(concat("rank ", failed.rank, " (pid ", failed.pid, ") ", ending(failed.status),
                           ": stopping ", running_, running_ == 1 ? " other worker" : " other workers",
                           ", to be killed in ", options_.shutdown_timeout_seconds,
                           " seconds (--shutdown-timeout)"));
  stopping_ = true;
  send_to_all(SIGTERM);
  start_clock();
}

void Supervisor::kill_if_overdue() {
  if (!kill_at_ || Clock::now() < *kill_at_) return;
  for (const Worker& worker : workers_) {
    if (!worker.is_running) continue;
    util::log_warning(concat("rank ", worker.rank, " (pid ", worker.pid, ") still runs ",
                             options_.shutdown_timeout_seconds,
                             " seconds after it was told to stop: killing it"));
  }
  kill_all();
}

void Supervisor::send(Worker& worker, int signal) {
  if (!worker.is_running) return;
  // Ending by SIGUSR1 is a failure: that signal asks for something else.
  if (signal != SIGUSR1 && signal != SIGUSR2) worker.stop_signals_sent.insert(signal);
  signal_group(worker.pid, signal);
  // A worker that is stopped (SIGSTOP) would not notice otherwise.
  signal_group(worker.pid, SIGCONT);
}

void Supervisor::send_to_all(int signal) {
  for (Worker& worker : workers_) send(worker, signal);
}

void Supervisor::start_clock() {
  if (kill_at_) return;
  const std::chrono::duration<double> timeout(options_.shutdown_timeout_seconds);
  kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
}

void Supervisor::kill_all() {
  send_to_all(SIGKILL);
  kill_at_.reset();
}

void Supervisor::warn_of_lost_console() {
  if (warned_of_console_) return;
  for (const auto& [stream, name] :
       {std::pair(&console_.out(), "standard output"), std::pair(&console_.err(), "standard error")}) {
    if (stream->failure() == 0) continue;
    warned_of_console_ = true;
    util::log_warning(concat("cannot write to the launcher's ", name, " (",
                             util::errno_text(stream->failure()),
                             "): what the workers print there is dropped from now on; they go on"));
  }
}

void Supervisor::report(const Verdict& verdict) {
  if (!verdict.culprit) return;
  const WorkerEnd& end = *verdict.culprit;
  const std::string worker = concat("rank ", end.rank, " (pid ", end.pid, ") ");
  if (kind_of(end) == EndKind::kStopped) {
    util::log_warning(concat("told to stop: ", worker, ending(end.status)));
    return;
  }
  const int index = end.rank - options_.node_rank * options_.nproc_per_node;
  std::string last_lines;
  for (const std::string& line : pump_.last_error_lines(index)) last_lines += "\n    " + line;
  if (!last_lines.empty()) {
    util::log_error(concat("rank ", end.rank, " wrote last to its standard error:", last_lines));
  }
  const std::string log_path = pump_.log_path(index);
  util::log_error(
      concat(worker, workers_.size() > 1 ? "failed first: it " : "failed: it ", ending(end.status),
             end.status.signal == SIGKILL ? ", which is how the kernel answers a lack of memory" : "",
             log_path.empty() ? "" : "; its output is in " + log_path));
}

}  // namespace fsdp::launch
