#include "launch/worker_group.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launch/node_hardware.h"
#include "launch/process.h"
#include "util/error.h"
#include "util/file.h"
#include "util/system.h"

namespace fsdp::launch {
namespace {

constexpr std::chrono::seconds kLongestLoading{1};  ///< of a program; signals are held back no longer

/// A worker's share of all cores, or of those to which it and other workers are bound.
int share_of_cores(const std::vector<std::vector<int>>& cpus, size_t index) {
  const auto& own = cpus[index];
  const auto sharers = static_cast<int>(std::ranges::count(cpus, own));
  return (own.empty() ? available_cores() : static_cast<int>(own.size())) / sharers;
}

}  // namespace

WorkerGroup::WorkerGroup(const GroupSurroundings& surroundings, const NodePlacement& placement)
    : surroundings_(surroundings),
      placement_(placement),
      host_(util::host_name()),
      cpus_(bind_workers(surroundings.options.numa_binding, read_cpus(), gpu_numa_nodes(),
                         placement.workers_per_node)),
      pump_(surroundings.console, output_plans()) {}

WorkerGroup::~WorkerGroup() {
  send_to_all(SIGKILL);
  for (Worker& worker : workers_) {
    if (worker.is_running) wait_and_reap(worker.pid);
  }
}

std::vector<OutputPlan> WorkerGroup::output_plans() const {
  const LaunchOptions& options = surroundings_.options;
  const bool by_stream = options.has_stream_files();
  if (!by_stream && !options.log_dir.empty()) util::make_writable_folder(options.log_dir);
  std::vector<OutputPlan> plans;
  for (int local_rank = 0; local_rank < placement_.workers_per_node; ++local_rank) {
    OutputPlan plan{.rank = placement_.first_rank + local_rank};
    const int tee = options.tee.of(local_rank), redirect = options.redirects.of(local_rank) & ~tee;
    const bool shown = options.local_ranks_filter.empty() || options.local_ranks_filter.contains(local_rank);
    for (const auto& [stream, target, name] : {std::tuple(StreamChoice::kOut, &plan.out, "stdout.log"),
                                               std::tuple(StreamChoice::kErr, &plan.err, "stderr.log")}) {
      target->on_console = shown && !(redirect & stream);
      if ((tee | redirect) & stream) {
        target->file = surroundings_.folder.of_worker(placement_.restarts, local_rank) / name;
      } else if (!by_stream && !options.log_dir.empty()) {
        target->file = std::filesystem::path(options.log_dir) / util::concat("rank", plan.rank, ".log");
      }
    }
    plans.push_back(plan);
  }
  return plans;
}

void WorkerGroup::start() {
  const std::vector<std::string> inherited = current_environment();
  for (int local_rank = 0; local_rank < placement_.workers_per_node; ++local_rank) {
    const auto index = static_cast<size_t>(local_rank);
    const auto error_file = error_file_in(surroundings_.folder.of_worker(placement_.restarts, local_rank));
    const WorkerPlace place{.local_rank = local_rank,
                            .cores = share_of_cores(cpus_, index),
                            .error_file = error_file,
                            .launch_marks = surroundings_.guard.marks()};
    Process process = spawn({.argv = surroundings_.options.program,
                             .environment = worker_environment(placement_, place, inherited),
                             // A terminal would stop a worker that reads it from its own process group.
                             .inherit_stdin = placement_.first_rank + local_rank == 0 &&
                                              placement_.restarts == 0 && !::isatty(STDIN_FILENO),
                             .cpus = cpus_[index]});
    workers_.push_back(
        {.local_rank = local_rank, .pid = process.pid, .error_file = error_file, .started = Clock::now()});
    ++running_;
    pump_.attach(local_rank, std::move(process.out), std::move(process.err));
  }
}

std::vector<WorkerEnd> WorkerGroup::reap(int round) {
  std::vector<WorkerEnd> ended;
  for (Worker& worker : workers_) {
    if (!worker.is_running) continue;
    const std::optional<ExitStatus> status = fsdp::launch::reap(worker.pid);
    if (!status) continue;
    worker.is_running = false;
    --running_;
    pump_.worker_ended(worker.local_rank);
    worker.end = {.rank = placement_.first_rank + worker.local_rank,
                  .pid = worker.pid,
                  .status = *status,
                  .round = round,
                  .stop_signals_sent = worker.stop_signals_sent,
                  .host = host_,
                  .log_path = pump_.log_path(worker.local_rank)};
    ended.push_back(worker.end);
  }
  return ended;
}

std::vector<WorkerEnd> WorkerGroup::ends() const {
  std::vector<WorkerEnd> ends;
  for (const Worker& worker : workers_) {
    if (worker.is_running) continue;
    WorkerEnd& end = ends.emplace_back(worker.end);
    end.last_lines = pump_.last_lines(worker.local_rank);
    end.message = read_error_file(worker.error_file);
    end.standing =
        read_activity_file(activity_file_in(std::filesystem::path(worker.error_file).parent_path()));
  }
  return ends;
}

std::vector<std::string> WorkerGroup::names_of_running() const {
  std::vector<std::string> names;
  for (const Worker& worker : workers_) {
    if (!worker.is_running) continue;
    WorkerEnd end;
    end.rank = placement_.first_rank + worker.local_rank;
    end.pid = worker.pid;
    names.push_back(name_of(end));
  }
  return names;
}

void WorkerGroup::send(Worker& worker, int signal) {
  if (!worker.is_running) return;
  // These do not ask a worker to end: one that they end has failed.
  if (signal != SIGUSR1 && signal != SIGUSR2) worker.stop_signals_sent.insert(signal);
  signal_group(worker.pid, signal);
  // Otherwise a stopped worker (SIGSTOP) would not react.
  signal_group(worker.pid, SIGCONT);
}

void WorkerGroup::send_to_all(int signal) {
  for (Worker& worker : workers_) send(worker, signal);
}

bool WorkerGroup::may_send(const Worker& worker, int signal) const {
  // A program that never handles the signal must end by it before the shutdown time-out, not by SIGKILL.
  const std::chrono::duration<double> half(surroundings_.options.shutdown_timeout_seconds / 2);
  const auto age = Clock::now() - worker.started;
  return age > kLongestLoading || age > half || !would_end(worker.pid, signal);
}

void WorkerGroup::pass_on(int signal) {
  for (Worker& worker : workers_) {
    if (may_send(worker, signal)) {
      send(worker, signal);
    } else if (worker.is_running) {
      worker.waiting.push_back(signal);
    }
  }
}

void WorkerGroup::send_waiting() {
  for (Worker& worker : workers_) {
    if (worker.waiting.empty() || !may_send(worker, worker.waiting.front())) continue;
    for (int signal : std::exchange(worker.waiting, {})) send(worker, signal);
  }
}

int WorkerGroup::milliseconds_to_wait() const {
  constexpr int kLookAgain = 20;
  const bool waits = std::ranges::any_of(
      workers_, [](const Worker& worker) { return worker.is_running && !worker.waiting.empty(); });
  return waits ? kLookAgain : -1;
}

}  // namespace fsdp::launch
