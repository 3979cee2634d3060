#include "comm/api/run_store.h"

#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <c10/util/env.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <regex>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/util/limits.h"
#include "base/util/text.h"
#include "comm/api/group_failure.h"
#include "comm/api/rank_tree.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// gloo and c10d's store write to sockets whose peer may be gone; that must be an error, not the end of the
/// process by SIGPIPE. A handler that the program has installed stays.
void ignore_broken_pipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

[[noreturn]] void not_all_came(const LaunchEnvironment& environment, const std::string& where,
                               milliseconds timeout, const std::string& cause) {
  util::fail(ErrorKind::kTimeout, "rendezvous at ", where, ": rank ", environment.rank, " waited ",
             timeout.count() / 1000, " s, but not all of the ", environment.world_size,
             " processes arrived; check that all were started with the same MASTER_ADDR and "
             "MASTER_PORT (",
             cause, ")");
}

std::string key_of(const std::string& purpose, int rank) { return concat(purpose, "/", rank); }

/// Keys of the ranks from `first` to before `end`.
std::vector<std::string> keys_of(const std::string& purpose, int first, int end) {
  std::vector<std::string> keys;
  for (int rank = first; rank < end; ++rank) keys.push_back(key_of(purpose, rank));
  return keys;
}

/// The ranks whose keys are absent. Asks for halves, because few ranks of many are.
std::vector<std::string> absent(c10d::Store& store, const std::string& purpose, int first, int end) {
  if (first >= end || store.check(keys_of(purpose, first, end))) return {};
  if (end - first == 1) return {std::to_string(first)};
  const int middle = first + (end - first) / 2;
  std::vector<std::string> ranks = absent(store, purpose, first, middle);
  for (std::string& rank : absent(store, purpose, middle, end)) ranks.push_back(std::move(rank));
  return ranks;
}

constexpr milliseconds kFirstPause{2}, kLongestPause{100};
/// Time that the store needs for a connection. Thousands at once overflow the kernel's queue, and then try
/// again after seconds.
constexpr std::chrono::microseconds kBetweenRanks{200};
constexpr milliseconds kLongestAnswer{1000};  ///< limit for the answer of a running host
constexpr milliseconds kShortestWait{1000};   ///< c10d takes less than a second for no time-out

enum class Answer { kListens, kRefuses, kUnclear };

/// If nobody listens at an ephemeral port, the system may assign that very port to the socket that connects.
bool is_connected_to_itself(int socket) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof(own), other_size = sizeof(other);
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

Answer answer_of(int error) {
  if (error == 0) return Answer::kListens;
  return error == ECONNREFUSED || error == ECONNRESET ? Answer::kRefuses : Answer::kUnclear;
}

Answer ask(int socket, const addrinfo& address) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return answer_of(errno);
    pollfd entry{.fd = socket, .events = POLLOUT, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(kLongestAnswer.count())) != 1) return Answer::kUnclear;
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return Answer::kUnclear;
    if (error != 0) return answer_of(error);
  }
  return is_connected_to_itself(socket) ? Answer::kRefuses : Answer::kListens;
}

/// A host refuses if one of its addresses refuses and none listens.
Answer ask(const addrinfo* address) {
  Answer best = Answer::kUnclear;
  for (; address != nullptr; address = address->ai_next) {
    const int socket = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) continue;
    const Answer answer = ask(socket, *address);
    // Closed without a reset: c10d's store warns of connections that were reset before it accepted them.
    ::close(socket);
    if (answer == Answer::kListens) return answer;
    if (answer == Answer::kRefuses) best = answer;
  }
  return best;
}

/// A socket bound to host:port if the host is an IPv4 loopback address (127.0.0.0/8) and the port is free.
///
/// By default c10d's store listens at all addresses of the host, IPv6 and IPv4 at once. Then other hosts can
/// reach it, and c10d asks the name server for the names of peers (::ffff:127.0.0.1 is not in /etc/hosts);
/// where that does not answer, the run starts 5 seconds later.
std::optional<int> bind_to_loopback(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return std::nullopt;
  if (ntohl(address.sin_addr.s_addr) >> 24 != IN_LOOPBACKNET) return std::nullopt;
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return std::nullopt;
  const int yes = 1;  // connections of the last run may still be in TIME_WAIT
  if (::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return socket;
  }
  ::close(socket);
  return std::nullopt;
}

bool hosts_store(const LaunchEnvironment& environment) {
  return environment.rank == 0 && !environment.launcher_keeps_store;
}

milliseconds left_until(Clock::time_point deadline) {
  return std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
}

std::string mark_of_this_join() {
  std::array<uint64_t, 2> random{};
  if (::getentropy(random.data(), sizeof(random)) != 0) {
    throw std::runtime_error(concat("the system gives no random numbers: ", util::errno_text(errno)));
  }
  return concat(random[0], "/", random[1]);
}

/// One attempt to meet the other ranks.
struct Arrival {
  LaunchEnvironment environment{};
  milliseconds timeout{};  ///< limit for later calls
  milliseconds limit{};    ///< limit for the attempt
  std::string mark{};      ///< distinguishes this call of join_run_store() from all others
};

/// The store once all ranks have joined it; null if another process or call has joined it as this rank, so
/// that it is an earlier one, which its rank 0 has yet to end. Whoever meets one that it cannot tell waits
/// there for a rank 0 that does not come, and is disconnected. c10d's own count of processes would count each
/// attempt, and lets the others go before all have come.
RunStore arrive(const Arrival& arrival) {
  const LaunchEnvironment& environment = arrival.environment;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = hosts_store(environment);
  options.numWorkers = static_cast<size_t>(environment.world_size);
  options.waitWorkers = false;
  options.timeout = arrival.limit;
  const auto deadline = Clock::now() + arrival.limit;
  if (options.isServer) {
    // A process asks first whether anybody listens: as many such connections as the kernel queues may be open
    // beside.
    util::make_room_for_files(int64_t{environment.world_size} + SOMAXCONN,
                              concat(environment.world_size, " processes are to meet at this one, rank 0"));
  }
  if (!options.isServer && !wait_for_listener(environment.master_addr, environment.master_port, deadline)) {
    throw std::runtime_error("timeout: nothing listens there");
  }
  // Without this socket the store binds to the port itself, and says why if it cannot.
  if (options.isServer) {
    options.masterListenFd = bind_to_loopback(environment.master_addr, environment.master_port);
  }
  RunStore store = c10::make_intrusive<c10d::PrefixStore>(
      concat("fsdp/", environment.restarts),
      c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options));
  const std::vector<uint8_t> mark(arrival.mark.begin(), arrival.mark.end());
  if (const std::string key = key_of("joined", environment.rank); environment.rank != 0) {
    if (environment.launcher_keeps_store) {
      store->set(key, mark);
    } else if (store->compareSet(key, {}, mark) != mark) {
      return {};
    }
  }
  const auto wait_for = [&](const char* purpose, int first, int end) {
    if (first == end) return;
    try {
      store->wait(keys_of(purpose, first, end), std::max(left_until(deadline), kShortestWait));
    } catch (const std::exception& error) {
      if (environment.rank != 0 || !says_timeout(error.what())) throw;
      const auto ranks = absent(*store, purpose, first, end);
      throw std::runtime_error(
          concat("timeout: no word from rank", ranks.size() == 1 ? " " : "s ", util::name_list(ranks)));
    }
  };
  if (environment.rank == 0) {
    wait_for("joined", 1, environment.world_size);
    store->set(key_of("joined", 0), mark);
    wait_for("met", 1, environment.world_size);  // before that, the end of this store would part the others
  } else {
    wait_for("joined", 0, 1);
    store->set(key_of("met", environment.rank), mark);
  }
  store->setTimeout(arrival.timeout);
  return store;
}

}  // namespace

bool wait_for_listener(const std::string& host, int port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return true;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (milliseconds pause = kFirstPause; ask(addresses.get()) == Answer::kRefuses;) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
  return true;
}

bool says_timeout(const std::string& text) {
  return contains(text, "imed out") || contains(text, "imeout") || contains(text, "TIMEDOUT");
}

std::string first_line(const std::string& text) {
  static const std::regex never_set(R"( ?\[?\b[1-9]\d*\.\d+\.0\.0\b\]?(:\d+)?)");
  return std::regex_replace(text.substr(0, text.find('\n')), never_set, "");
}

void configure_c10d() {
  c10::utils::set_env("TORCH_FR_BUFFER_SIZE", "0");
  if (c10::utils::has_env("TORCH_CPP_LOG_LEVEL")) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
}

RunStore join_run_store(const LaunchEnvironment& environment, milliseconds timeout) {
  configure_c10d();
  ignore_broken_pipes();
  if (environment.master_addr.empty()) {
    util::fail(
        ErrorKind::kUsage, "mpirun does not tell where rank 0 is; with ", environment.world_size,
        " processes on several nodes, add -x MASTER_ADDR=HOST to its command line, where HOST is that of rank 0, or set "
        "comm.backend to mpi");
  }
  const auto deadline = Clock::now() + timeout;
  const std::string where = concat(environment.master_addr, ":", environment.master_port);
  const std::string mark = mark_of_this_join();
  if (!hosts_store(environment)) std::this_thread::sleep_for(environment.rank * kBetweenRanks);
  for (;; std::this_thread::sleep_for(kLongestPause)) {
    const Arrival arrival{environment, timeout, std::max(left_until(deadline), kShortestWait), mark};
    try {
      // c10d waits without a time-out for the answer of any process that accepts its connection.
      auto store = call_within(arrival.limit + kStoreGrace, [arrival] { return arrive(arrival); });
      if (!store) {
        util::fail(
            ErrorKind::kTimeout, "rendezvous at ", where, ": rank ", environment.rank,
            " is connected, but not to the run's store: the process that listens there has not answered in ",
            timeout.count() / 1000,
            " s, so it is another program, or rank 0 is stopped; choose a free MASTER_PORT (fsdp-launch "
            "--master-port), the same for all processes, and check MASTER_ADDR");
      }
      if (*store) return *store;
      if (Clock::now() >= deadline) {
        not_all_came(
            environment, where, timeout,
            concat("rank ", environment.rank, " has joined the store there before, so it is not this run's"));
      }
    } catch (const util::Error&) {
      throw;
    } catch (const std::exception& error) {
      std::string text = error.what();
      if (contains(text, "EADDRINUSE") || contains(text, "ddress already in use")) {
        util::fail(ErrorKind::kIo, "rendezvous: port ", environment.master_port,
                   " of this host is in use by another program; choose another with fsdp-launch "
                   "--master-port");
      }
      if (says_timeout(text)) not_all_came(environment, where, timeout, first_line(text));
      const bool lost = dynamic_cast<const c10::DistNetworkError*>(&error) != nullptr;
      if (hosts_store(environment) || !lost || Clock::now() >= deadline) {
        util::fail(ErrorKind::kPeerLost, "rendezvous at ", where, " failed on rank ", environment.rank, ": ",
                   first_line(text));
      }
    }
  }
}

void fail_at_the_store(const LaunchEnvironment& environment, size_t others, const std::exception& error) {
  std::string cause = first_line(error.what());
  const std::string port = environment.master_port > 0 ? concat(":", environment.master_port) : "";
  util::fail(says_timeout(cause) ? ErrorKind::kTimeout : ErrorKind::kPeerLost, "rank ", environment.rank,
             " has not heard from all of its ", others, " peers at ", environment.master_addr, port, ": ",
             cause);
}

std::string combine_texts(c10d::Store& store, const TextMeeting& meeting, int rank, std::string text) {
  const std::vector<int>& ranks = meeting.ranks;
  const auto own = std::ranges::find(ranks, rank) - ranks.begin();
  const std::string result_key = key_of(meeting.purpose + "/result", ranks.front());
  size_t level = 0;
  for (const auto& group : RankTree::groups_of(static_cast<int>(own), static_cast<int>(ranks.size()))) {
    const std::string purpose = concat(meeting.purpose, "/", level++);
    if (group.front() != own) {
      store.set(key_of(purpose, rank), std::vector<uint8_t>(text.begin(), text.end()));
      const std::vector<uint8_t> result = store.get(result_key);
      return {result.begin(), result.end()};
    }
    std::vector<std::string> keys, texts{std::move(text)};
    for (int member : group) {
      if (member != own) keys.push_back(key_of(purpose, ranks[static_cast<size_t>(member)]));
    }
    if (!keys.empty()) {
      for (const auto& bytes : store.multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
    }
    text = meeting.combine(texts);
  }
  if (ranks.size() > 1) store.set(result_key, std::vector<uint8_t>(text.begin(), text.end()));
  return text;
}

std::string combine_texts(RunStore& store, const LaunchEnvironment& environment, const TextMeeting& meeting,
                          const std::string& text) {
  TextMeeting all = meeting;
  if (all.ranks.empty()) all.ranks = run_identity(environment).ranks;
  const size_t others = all.ranks.size() - 1;
  return at_the_store(store, environment, others,
                      [store, meeting = std::move(all), rank = environment.rank, text = text] {
                        return combine_texts(*store, meeting, rank, text);
                      });
}

void leave_store(RunStore& store, const LaunchEnvironment& environment) {
  const std::string purpose = "left";
  if (environment.rank != 0) return store->set(key_of(purpose, environment.rank), std::vector<uint8_t>());
  const int world_size = environment.world_size;
  at_the_store(store, environment, static_cast<size_t>(world_size) - 1,
               [store, keys = keys_of(purpose, 1, world_size)] {
                 if (!keys.empty()) store->wait(keys);
                 return true;
               });
}

// The first line gives the place in c10d, the second the error; NCCL's own message follows "Last error:".
//   NCCL error in: ../torch/.../NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL
//   version 2.28.9 ncclInvalidUsage: This usually reflects invalid usage of NCCL library. Last error:
//   Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000
std::string nccl_cause(const std::string& text) {
  std::istringstream lines(text);
  std::string first, error, last, line;
  bool last_follows = false;
  for (int number = 0; std::getline(lines, line); ++number) {
    if (number == 0) first = line;
    if (line.starts_with("nccl") && error.empty()) error = line;
    if (last_follows && !line.starts_with("Exception raised")) last = line;  // else a stack trace follows
    last_follows = line.starts_with("Last error:");
  }
  if (!last.empty()) return last;
  return error.empty() ? first : error;
}

}  // namespace fsdp::comm
