// rendezvous [--clients N] [--rounds N] [--only launchers|faults|ranks]: how N clients (10,240) meet on this
// machine.
//
//   launchers   a real fsdp-launch, and a connection for each of the other nodes: of 1, 8, 64 and 128 ranks,
//               N ranks together. From the first connection until the last node is told to start.
//   faults      N nodes of one rank: one is missing; one comes twice and a stranger talks to the port.
//   ranks       N threads that meet at the store of a rank 0, as the ranks of nodes of 1, 8, 64 and 128 do,
//               up to where the ranks of a host open each other's memory. From the word go until the last has
//               met all.
//
// Clients are in other processes than the one where they meet, on the same cores, and, if root starts it, in
// a network namespace. Exits with 1 if any client has not met the others, or a fault is not named.

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/util/error.h"
#include "base/util/start_clock.h"
#include "base/util/text.h"
#include "comm/api/run_store.h"
#include "comm/shm/host_ranks.h"
#include "support/free_port.h"
#include "support/node_crowd.h"
#include "support/program_path.h"
#include "support/run_program.h"

namespace fsdp {
namespace {

using testing::NodeCrowd;
using testing::RunningProgram;

constexpr int kRanksOfANode[] = {1, 8, 64, 128};
constexpr double kPatienceSeconds = 120;

bool all_went_well = true;

void complain(const std::string& what) {
  std::printf("  FAILED: %s\n", what.c_str());
  all_went_well = false;
}

/// The most memory that the process has had; 0 if it is gone.
double peak_mib(pid_t pid) {
  std::ifstream status(concat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atof(line.c_str() + std::strlen("VmHWM:")) / 1024;
  }
  return 0;
}

/// A process of this program, with a pipe in each direction.
class Part {
 public:
  struct Report {
    double begin = 0, end = 0;  ///< util::monotonic_seconds()
    char error[240] = "";
  };

  explicit Part(const std::function<void(Part& self)>& body) {
    int down[2], up[2];
    if (::pipe2(down, O_CLOEXEC) != 0 || ::pipe2(up, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error(concat("no process: ", util::errno_text(errno)));
    const bool is_child = pid_ == 0;
    in_ = is_child ? down[0] : up[0];
    out_ = is_child ? up[1] : down[1];
    ::close(is_child ? down[1] : up[1]);
    ::close(is_child ? up[0] : down[0]);
    if (!is_child) return;
    try {
      body(*this);
    } catch (const std::exception& error) {
      report(0, 0, error.what());
    }
    std::_Exit(0);
  }
  ~Part() {
    ::close(in_);
    ::close(out_);
    ::kill(pid_, SIGKILL);  // others have the other end of its pipe, too, so that it would not notice the end
    ::waitpid(pid_, nullptr, 0);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  pid_t pid() const { return pid_; }

  // In the parent.
  void say_go() const {
    if (::write(out_, "g", 1) != 1) complain("a part has ended");
  }
  Report next() const {
    Report report;
    char* const to = reinterpret_cast<char*>(&report);
    for (size_t got = 0; got < sizeof(report);) {
      const ssize_t count = ::read(in_, to + got, sizeof(report) - got);
      if (count <= 0) return Report{.begin = 0, .end = 0, .error = "a part has ended without a report"};
      got += static_cast<size_t>(count);
    }
    return report;
  }

  // In the process.
  void wait_for_go() const {
    char word = 0;
    if (::read(in_, &word, 1) != 1) std::_Exit(1);
  }
  void report(double begin, double end, const std::string& error) const {
    Report report{.begin = begin, .end = end, .error = ""};
    std::snprintf(report.error, sizeof(report.error), "%s", error.c_str());
    if (::write(out_, &report, sizeof(report)) != sizeof(report)) std::_Exit(1);
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

using Parts = std::vector<std::unique_ptr<Part>>;

/// What all parts report: from the first's beginning to the last's end; complains, and returns -1, if one has
/// failed.
double seconds_of(const Parts& parts) {
  double begin = 0, end = 0;
  bool well = true;
  for (const auto& part : parts) {
    const Part::Report report = part->next();
    if (report.error[0] != '\0') {
      complain(report.error);
      well = false;
    }
    begin = begin == 0 ? report.begin : std::min(begin, report.begin);
    end = std::max(end, report.end);
  }
  return well ? end - begin : -1;
}

struct Series {
  std::vector<double> seconds{};  ///< of each rendezvous that all have come to
  double peak = 0;                ///< MiB
};

void print(const std::string& what, int rounds, const std::string& where, Series series) {
  std::printf("%s: %zu of %d rendezvous\n  seconds of each:", what.c_str(), series.seconds.size(), rounds);
  for (size_t i = 0; i < series.seconds.size(); ++i) {
    std::printf("%s%.2f", i % 20 == 0 ? "\n    " : " ", series.seconds[i]);
  }
  if (std::sort(series.seconds.begin(), series.seconds.end()); !series.seconds.empty()) {
    std::printf("\n  least %.2f s, median %.2f s, most %.2f s", series.seconds.front(),
                series.seconds[series.seconds.size() / 2], series.seconds.back());
  }
  std::printf("; %s %.0f MiB at most\n", where.c_str(), series.peak);
  std::fflush(stdout);
}

bool listens(int port) {
  std::string why;
  const auto socket = launch::start_connecting("127.0.0.1", port, why);
  pollfd entry{.fd = socket ? socket->get() : -1, .events = POLLOUT, .revents = 0};
  return socket && ::poll(&entry, 1, 1000) == 1 && (entry.revents & (POLLERR | POLLHUP)) == 0;
}

/// The nodes from `begin` to before `end` join, are told to start, and end their round.
void play_nodes(Part& self, const NodeCrowd::Plan& plan, int begin, int end) {
  NodeCrowd crowd(plan);
  self.report(0, 0, "");
  self.wait_for_go();
  const double from = util::monotonic_seconds();
  constexpr int kBetweenSteps = 64;
  for (int node = begin; node < end; ++node) {
    crowd.join(node, node);
    if (node % kBetweenSteps == 0) crowd.step(0);
  }
  const int nodes = end - begin;
  crowd.step_until([&] { return crowd.started() == nodes || crowd.closed() > 0; }, kPatienceSeconds);
  const double to = util::monotonic_seconds();
  self.report(from, to,
              crowd.started() == nodes ? crowd.misplaced()
                                       : concat(crowd.started(), " of ", nodes, " nodes were told to start"));
  self.wait_for_go();
  crowd.finish_round();
  crowd.step_until([&] { return crowd.finished() == nodes; }, kPatienceSeconds);
  self.report(from, to,
              crowd.finished() == nodes
                  ? ""
                  : concat(crowd.finished(), " of ", nodes, " nodes were told of the end"));
  self.wait_for_go();
}

void one_rendezvous_of_launchers(const NodeCrowd::Plan& plan, Series& series) {
  RunningProgram host(NodeCrowd::host_command(testing::program_path("fsdp-launch"), plan, "120"),
                      {.timeout_seconds = 3 * kPatienceSeconds});
  if (!testing::eventually([&] { return listens(plan.port); }))
    return complain("fsdp-launch does not listen");
  constexpr int kCrowds = 2;
  Parts crowds;
  for (int i = 0; i < kCrowds; ++i) {
    const int begin = 1 + (plan.nodes - 1) * i / kCrowds, end = 1 + (plan.nodes - 1) * (i + 1) / kCrowds;
    crowds.push_back(std::make_unique<Part>([=](Part& self) { play_nodes(self, plan, begin, end); }));
  }
  const auto go_on = [&] {
    for (const auto& crowd : crowds) crowd->say_go();
  };
  seconds_of(crowds);
  go_on();
  const double seconds = seconds_of(crowds);
  go_on();
  const bool ended = seconds_of(crowds) >= 0;
  series.peak = std::max(series.peak, peak_mib(host.pid()));
  go_on();
  crowds.clear();
  const testing::ProgramResult result = host.wait();
  if (result.exit_code != 0)
    return complain(concat("fsdp-launch ended with ", result.exit_code, ": ", result.err));
  if (seconds >= 0 && ended) series.seconds.push_back(seconds);
}

void measure_launchers(int clients, int rounds) {
  for (int workers : kRanksOfANode) {
    const int nodes = clients / workers;
    if (nodes < 2) continue;
    Series series;
    for (int round = 0; round < rounds; ++round) {
      one_rendezvous_of_launchers({.port = testing::free_port(), .nodes = nodes, .workers = workers}, series);
    }
    print(concat("launchers of ", util::with_commas(nodes), " nodes of ", workers), rounds,
          "the coordinator's process", std::move(series));
  }
}

/// A run whose nodes are connections of this process.
struct Faulty {
  NodeCrowd::Plan plan;
  RunningProgram host;
  NodeCrowd crowd;

  Faulty(int nodes, const std::string& join_timeout)
      : plan{.port = testing::free_port(), .nodes = nodes},
        host(NodeCrowd::host_command(testing::program_path("fsdp-launch"), plan, join_timeout),
             {.timeout_seconds = 3 * kPatienceSeconds}),
        crowd(plan) {
    if (!testing::eventually([&] { return listens(plan.port); })) complain("fsdp-launch does not listen");
  }
  void join(int begin, int end) {
    for (int node = begin; node < end; ++node) crowd.join(node, node);
  }
  /// The first line of the launcher's output with this text, if it comes.
  void expect_line(const char* fault, const std::string& text) {
    std::printf("%s\n", fault);
    if (!host.wait_for(text)) return complain(concat("not found: ", text, "; found: ", host.err()));
    const std::string& output = host.err();
    const size_t at = output.find(text), begin = output.rfind('\n', at) + 1;
    std::printf("  %s\n", output.substr(begin, output.find('\n', at) - begin).c_str());
  }
};

void show_faults(int clients) {
  const int odd = clients / 2;
  {
    Faulty run(clients, "10");
    run.join(1, odd);
    run.join(odd + 1, clients);
    run.crowd.step_until([&] { return run.crowd.finished() == clients - 2; }, kPatienceSeconds);
    run.expect_line("one is missing:", concat("; missing: node ", odd, "\n"));
  }
  Faulty run(clients, "120");
  run.join(1, clients - 1);
  run.crowd.join(odd, clients);
  run.crowd.step_until([&] { return run.crowd.closed() == 1; }, kPatienceSeconds);
  run.expect_line("one comes twice:", concat("node rank ", odd, " has been in use by "));
  run.crowd.add_stranger("GET / HTTP/1.1");
  run.crowd.step_until([&] { return run.crowd.closed() == 2; }, kPatienceSeconds);
  run.expect_line("one is a stranger:", "and sent \"GET / HTTP/1.1\"");
  run.join(clients - 1, clients);
  if (!run.crowd.step_until([&] { return run.crowd.started() == clients - 1; }, kPatienceSeconds)) {
    complain(concat("then ", run.crowd.started(), " of ", clients - 1, " started"));
  }
}

struct Meeting {
  int port = 0, world_size = 1, per_node = 1;
};

/// What a rank does at its start, up to where the ranks of a host open each other's memory. Returns the time
/// after that; the store is left when all have come so far.
double meet(const Meeting& meeting, int rank) {
  const comm::LaunchEnvironment environment{
      rank, meeting.world_size, rank % meeting.per_node, meeting.per_node, "127.0.0.1", meeting.port};
  comm::RunStore store = comm::join_run_store(environment, std::chrono::seconds(120));
  // HostRanks::meet() does the same in one call, too.
  const auto meet_others = [&] {
    const int host = rank / meeting.per_node;
    const comm::HostRoll roll = comm::call_the_roll(
        environment, store, {concat("host ", host), "pid:[4026531836]", "net:[4026531840]"}, "");
    FSDP_CHECK(static_cast<int>(roll.hosts.size()) == meeting.world_size &&
               roll.hosts.back() == (meeting.world_size - 1) / meeting.per_node);
    std::vector<int> here(static_cast<size_t>(meeting.per_node));
    std::iota(here.begin(), here.end(), host * meeting.per_node);
    // As long as the offers of HostRanks::meet().
    const auto joined = [](const std::vector<std::string>& texts) { return util::join(texts, ""); };
    const std::string offer(48, '.');
    const std::string offers = comm::combine_texts(
        store, environment, {.purpose = "offers", .combine = joined, .ranks = here}, offer);
    FSDP_CHECK(offers.size() == here.size() * offer.size());
    comm::combine_texts(store, environment, {.purpose = "outcome", .combine = joined}, "");
    return util::monotonic_seconds();
  };
  const double end = comm::at_the_store(store, environment, meeting.world_size - 1, meet_others);
  comm::leave_store(store, environment);
  return end;
}

/// The ranks from `begin` to before `end`, as threads.
void play_ranks(Part& self, const Meeting& meeting, int begin, int end) {
  // Elsewhere they would not take the cores of rank 0, where all meet.
  constexpr int kPolite = 5;
  if (begin > 0 && ::nice(kPolite) == -1) self.report(0, 0, "nice");
  std::latch go(1);
  std::mutex mutex;
  double last = 0;
  std::string failure;
  std::vector<std::thread> threads;
  for (int rank = begin; rank < end; ++rank) {
    threads.push_back(util::start_thread([&, rank] {
      go.wait();
      double met = 0;
      std::string error;
      try {
        met = meet(meeting, rank);
      } catch (const std::exception& caught) {
        error = caught.what();
      }
      const std::lock_guard lock(mutex);
      last = std::max(last, met);
      if (failure.empty()) failure = error;
    }));
  }
  self.report(0, 0, "");
  self.wait_for_go();
  const double from = util::monotonic_seconds();
  go.count_down();
  for (std::thread& thread : threads) thread.join();
  self.report(from, last, failure);
  self.wait_for_go();
}

void one_rendezvous_of_ranks(const Meeting& meeting, Series& series) {
  Parts parts;
  const int others = meeting.world_size - 1;
  const auto add = [&](int begin, int end) {
    parts.push_back(std::make_unique<Part>([=](Part& self) { play_ranks(self, meeting, begin, end); }));
  };
  add(0, 1);
  constexpr int kProcesses = 8;
  for (int i = 0; i < kProcesses; ++i) add(1 + others * i / kProcesses, 1 + others * (i + 1) / kProcesses);
  if (seconds_of(parts) < 0) return;
  for (const auto& part : parts) part->say_go();
  const double seconds = seconds_of(parts);
  series.peak = std::max(series.peak, peak_mib(parts.front()->pid()));
  for (const auto& part : parts) part->say_go();
  if (seconds >= 0) series.seconds.push_back(seconds);
}

void measure_ranks(int clients, int rounds) {
  for (int per_node : kRanksOfANode) {
    const int world_size = clients / per_node * per_node;
    if (world_size < 2) continue;
    Series series;
    for (int round = 0; round < rounds; ++round) {
      one_rendezvous_of_ranks({testing::free_port(), world_size, per_node}, series);
    }
    print(concat(util::with_commas(world_size), " ranks of nodes of ", per_node, " at the store"), rounds,
          "rank 0's process, of which libtorch is the most,", std::move(series));
  }
}

/// c10d asks a name server for each peer, and a port stays in use for a minute after its connection: in a
/// network of its own, which root may make, neither counts.
void enter_own_network() {
  const int fd = ::unshare(CLONE_NEWNET) == 0 ? ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  if (fd < 0 || ::ioctl(fd, SIOCSIFFLAGS, &loopback) != 0) {
    std::printf("in the network of this machine, with its name servers: %s\n",
                util::errno_text(errno).c_str());
  }
  if (fd >= 0) ::close(fd);
}

int main_of(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);  // a part that has ended is told to go on
  enter_own_network();
  int clients = 10240, rounds = 100;
  std::string only;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    int* const number = option == "--clients" ? &clients : option == "--rounds" ? &rounds : nullptr;
    if (number != nullptr) *number = std::atoi(value.c_str());
    if (option == "--only") only = value;
    const bool is_part = only.empty() || only == "launchers" || only == "faults" || only == "ranks";
    if ((number == nullptr && option != "--only") || clients < 4 || rounds < 1 || !is_part) {
      fail(ErrorKind::kUsage,
           "expected --clients N (4 or more), --rounds N (1 or more) and --only launchers, faults or ranks; "
           "found ",
           option, " ", value);
    }
  }
  if (only.empty() || only == "launchers") measure_launchers(clients, rounds);
  if (only.empty() || only == "faults") show_faults(clients);
  if (only.empty() || only == "ranks") measure_ranks(clients, rounds);
  return all_went_well ? 0 : 1;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] { return fsdp::main_of(argc, argv); });
}
