#include "tools/launch/worker_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/system.h"
#include "tools/launch/node_hardware.h"
#include "tools/launch/process.h"

namespace fsdp::launch {
namespace {

/// Longest time to load a program, even from a slow disk, for which signals are held back.
constexpr std::chrono::seconds kLongestLoading{5};

/// A worker's share of all cores, or of the cores to which it and other workers are bound. At most its share
/// of the CPU time that control groups allow.
int share_of_cores(const std::vector<std::vector<int>>& cpus, size_t index) {
  const int share = available_cores() / static_cast<int>(cpus.size());
  const auto& own = cpus[index];
  if (own.empty()) return share;
  const int bound = static_cast<int>(own.size()) / static_cast<int>(std::ranges::count(cpus, own));
  return util::cpu_quota() ? std::min(share, bound) : bound;
}

/// The two ends of a channel: the launcher's, which does not block, and the worker's.
std::pair<Descriptor, Descriptor> make_channel() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fail(ErrorKind::kUsage, "cannot open a channel to another worker: ", util::errno_text(errno),
         "; start fewer workers or raise the limit with ulimit -n");
  }
  std::pair<Descriptor, Descriptor> channel{Descriptor(ends[0]), Descriptor(ends[1])};
  const int flags = ::fcntl(ends[0], F_GETFL);
  FSDP_CHECK(flags >= 0 && ::fcntl(ends[0], F_SETFL, flags | O_NONBLOCK) == 0);
  return channel;
}

}  // namespace

WorkerGroup::WorkerGroup(const GroupSurroundings& surroundings, const NodePlacement& placement)
    : surroundings_(surroundings),
      placement_(placement),
      host_(util::host_name()),
      cpus_(bind_workers(surroundings.options.numa_binding, read_cpus(), gpu_numa_nodes(),
                         placement.workers_per_node)),
      pump_(surroundings.console, output_plans()) {
  for (int local_rank = 0; local_rank < size(); ++local_rank) workers_.push_back({.local_rank = local_rank});
}

WorkerGroup::~WorkerGroup() {
  send_to_all(SIGKILL);
  for (WorkerProcess& worker : workers_) {
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
        target->file = std::filesystem::path(options.log_dir) / concat("rank", plan.rank, ".log");
      }
    }
    plans.push_back(plan);
  }
  return plans;
}

void WorkerGroup::start() {
  for (WorkerProcess& worker : workers_) start_process(worker);
}

void WorkerGroup::start(int rank, int incarnation) {
  const int local_rank = rank - placement_.first_rank;
  if (local_rank < 0 || local_rank >= size()) return;
  WorkerProcess& worker = workers_[static_cast<size_t>(local_rank)];
  FSDP_CHECK(!worker.is_running, "rank ", rank, " is started while it runs");
  worker = {.local_rank = local_rank, .incarnation = incarnation};
  start_process(worker);
}

void WorkerGroup::start_process(WorkerProcess& worker) {
  const int local_rank = worker.local_rank;
  const auto index = static_cast<size_t>(local_rank);
  const bool has_channel = worker.incarnation > 0;
  const int restarts = has_channel ? worker.incarnation - 1 : placement_.restarts;
  worker.error_file = error_file_in(surroundings_.folder.of_worker(restarts, local_rank));
  auto [own_end, its_end] = has_channel ? make_channel() : std::pair<Descriptor, Descriptor>();
  const WorkerPlace place{.local_rank = local_rank,
                          .cores = share_of_cores(cpus_, index),
                          .error_file = worker.error_file,
                          .launch_marks = surroundings_.guard.marks(),
                          .channel = its_end.get(),
                          .restarts = restarts};
  Process process = spawn(
      {.argv = surroundings_.options.program,
       .environment = worker_environment(placement_, place, current_environment()),
       // A terminal would stop a worker that reads it from its own process group.
       .inherit_stdin = placement_.first_rank + local_rank == 0 && restarts == 0 && !::isatty(STDIN_FILENO),
       .channel = its_end.get(),
       .cpus = cpus_[index]});
  worker.pid = process.pid;
  worker.started = Clock::now();
  worker.is_running = true;
  if (has_channel) worker.channel.emplace(std::move(own_end));
  ++running_;
  pump_.attach(local_rank, std::move(process.out), std::move(process.err));
}

WorkerGroup::WorkerProcess* WorkerGroup::find(int rank, int incarnation) {
  const int local_rank = rank - placement_.first_rank;
  if (local_rank < 0 || local_rank >= size()) return nullptr;
  WorkerProcess& worker = workers_[static_cast<size_t>(local_rank)];
  return worker.is_running && worker.incarnation == incarnation ? &worker : nullptr;
}

void WorkerGroup::kill(int rank, int incarnation) {
  if (WorkerProcess* worker = find(rank, incarnation)) send(*worker, SIGKILL);
}

void WorkerGroup::tell(int rank, int incarnation, const std::string& line) {
  WorkerProcess* worker = find(rank, incarnation);
  if (!worker) return;
  worker->channel->send(line);
  worker->channel->flush();
}

void WorkerGroup::add_channel_entries(std::vector<pollfd>& entries) const {
  for (const WorkerProcess& worker : workers_) {
    if (worker.channel) worker.channel->add_poll_entry(entries);
  }
}

std::vector<WorkerGroup::ChannelLine> WorkerGroup::take_lines() {
  std::vector<ChannelLine> lines;
  for (WorkerProcess& worker : workers_) {
    if (!worker.channel) continue;
    worker.channel->exchange();
    while (auto line = worker.channel->take_line()) {
      lines.push_back({placement_.first_rank + worker.local_rank, worker.incarnation, std::move(*line)});
    }
  }
  return lines;
}

bool WorkerGroup::has_process(pid_t pid) const {
  return std::ranges::any_of(workers_,
                             [&](const WorkerProcess& each) { return each.is_running && each.pid == pid; });
}

std::vector<WorkerEnd> WorkerGroup::reap(int round) {
  std::vector<WorkerEnd> ended;
  for (WorkerProcess& worker : workers_) {
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
                  .told_after_failure = worker.told_after_failure,
                  .host = host_,
                  .log_path = pump_.log_path(worker.local_rank),
                  .incarnation = worker.incarnation};
    ended.push_back(worker.end);
  }
  return ended;
}

std::vector<WorkerEnd> WorkerGroup::ends() const {
  std::vector<WorkerEnd> ends;
  for (const WorkerProcess& worker : workers_) {
    if (worker.is_running || worker.pid < 0) continue;
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
  for (const WorkerProcess& worker : workers_) {
    if (!worker.is_running) continue;
    WorkerEnd end;
    end.rank = placement_.first_rank + worker.local_rank;
    end.pid = worker.pid;
    names.push_back(name_of(end));
  }
  return names;
}

void WorkerGroup::send(WorkerProcess& worker, int signal) {
  if (!worker.is_running) return;
  // These signals do not ask a worker to end. A worker that they end has failed.
  if (signal != SIGUSR1 && signal != SIGUSR2) worker.stop_signals_sent.insert(signal);
  signal_group(worker.pid, signal);
  // A stopped worker (SIGSTOP) would not react otherwise.
  signal_group(worker.pid, SIGCONT);
}

void WorkerGroup::send_to_all(int signal) {
  for (WorkerProcess& worker : workers_) send(worker, signal);
}

void WorkerGroup::mark_told_after_failure() {
  for (WorkerProcess& worker : workers_) worker.told_after_failure |= worker.is_running;
}

bool WorkerGroup::may_send(const WorkerProcess& worker, int signal) const {
  // The signal must end a program that never handles it before the shutdown time-out does by SIGKILL.
  const std::chrono::duration<double> half(surroundings_.options.shutdown_timeout_seconds / 2);
  const auto age = Clock::now() - worker.started;
  return age > kLongestLoading || age > half || !would_end(worker.pid, signal);
}

void WorkerGroup::pass_on(int signal) {
  for (WorkerProcess& worker : workers_) {
    if (may_send(worker, signal)) {
      send(worker, signal);
    } else if (worker.is_running) {
      worker.waiting.push_back(signal);
    }
  }
}

void WorkerGroup::send_waiting() {
  for (WorkerProcess& worker : workers_) {
    if (worker.waiting.empty() || !may_send(worker, worker.waiting.front())) continue;
    for (int signal : std::exchange(worker.waiting, {})) send(worker, signal);
  }
}

int WorkerGroup::milliseconds_to_wait() const {
  constexpr int kLookAgain = 20;
  const bool waits = std::ranges::any_of(
      workers_, [](const WorkerProcess& worker) { return worker.is_running && !worker.waiting.empty(); });
  return waits ? kLookAgain : -1;
}

}  // namespace fsdp::launch
