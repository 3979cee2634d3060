#include "comm/run_store.h"

#include <csignal>
#include <regex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/bounded_call.h"
#include "comm/listener_wait.h"
#include "comm/loopback_listener.h"
#include "util/error.h"

namespace fsdp::comm {
namespace {

using util::ErrorKind;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// gloo and c10d's store write to sockets whose peer may be gone; that must be an error here, not the end of
/// the process by SIGPIPE. A handler of the program's own is left alone.
void ignore_broken_pipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

[[noreturn]] void not_all_came(const LaunchEnvironment& environment, const std::string& where,
                               std::chrono::milliseconds timeout, const std::string& cause) {
  util::fail(ErrorKind::kTimeout, "rendezvous at ", where, ": rank ", environment.rank, " waited ",
             timeout.count() / 1000, " s and not all of the ", environment.world_size,
             " processes came; check that all were started with the same MASTER_ADDR and MASTER_PORT (",
             cause, ")");
}

/// c10d asks whoever accepts its connection for an answer, and waits for that without a bound.
[[noreturn]] void no_answer(const LaunchEnvironment& environment, const std::string& where,
                            std::chrono::milliseconds timeout) {
  util::fail(ErrorKind::kTimeout, "rendezvous at ", where, ": rank ", environment.rank,
             " is connected there, ",
             "and expected the run's store; what listens at that address has not answered in ",
             timeout.count() / 1000,
             " s: it is another program, or rank 0 is stopped; choose a free MASTER_PORT (fsdp-launch "
             "--master-port), the same for all processes, and check MASTER_ADDR");
}

/// What c10d waits for within its own time-out ends by that; this is for what it waits for without one.
constexpr std::chrono::seconds kGrace{2};

std::string key_of(const std::string& purpose, int rank) { return util::concat(purpose, "/", rank); }

}  // namespace

bool says_timeout(const std::string& text) {
  return contains(text, "imed out") || contains(text, "imeout") || contains(text, "TIMEDOUT");
}

std::string first_line(const std::string& text) {
  static const std::regex never_set(R"( ?\[?\b[1-9]\d*\.\d+\.0\.0\b\]?(:\d+)?)");
  return std::regex_replace(text.substr(0, text.find('\n')), never_set, "");
}

RunStore join_run_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout) {
  ignore_broken_pipes();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.launcher_keeps_store;
  options.numWorkers = static_cast<size_t>(environment.world_size);
  options.waitWorkers = true;
  options.timeout = timeout;
  std::string where = util::concat(environment.master_addr, ":", environment.master_port);
  if (!options.isServer && !wait_for_listener(environment.master_addr, environment.master_port,
                                              std::chrono::steady_clock::now() + timeout)) {
    not_all_came(environment, where, timeout, "nobody listens there");
  }
  // Without one the store binds to the port itself, and says why if it cannot.
  if (options.isServer) {
    options.masterListenFd = bind_to_loopback(environment.master_addr, environment.master_port);
  }
  try {
    auto store = call_within(timeout + kGrace, [host = environment.master_addr, options] {
      return c10::make_intrusive<c10d::TCPStore>(host, options);
    });
    if (!store) no_answer(environment, where, timeout);
    return c10::make_intrusive<c10d::PrefixStore>(util::concat("fsdp/", environment.restarts), *store);
  } catch (const util::Error&) {
    throw;
  } catch (const std::exception& error) {
    std::string text = error.what();
    if (contains(text, "EADDRINUSE") || contains(text, "ddress already in use")) {
      util::fail(ErrorKind::kUsage, "rendezvous: port ", environment.master_port,
                 " of this host is in use by another program; choose another with fsdp-launch --master-port");
    }
    if (says_timeout(text)) {
      not_all_came(environment, where, timeout, first_line(text));
    }
    util::fail(ErrorKind::kPeerLost, "rendezvous at ", where, " failed on rank ", environment.rank, ": ",
               first_line(text));
  }
}

std::vector<std::string> exchange_texts(RunStore& store, const LaunchEnvironment& environment,
                                        const std::string& purpose, const std::string& text) {
  const auto exchange = [store, purpose, text, rank = environment.rank, size = environment.world_size] {
    store->set(key_of(purpose, rank), std::vector<uint8_t>(text.begin(), text.end()));
    std::vector<std::string> keys;
    for (int other = 0; other < size; ++other) keys.push_back(key_of(purpose, other));
    std::vector<std::string> texts;
    for (const auto& bytes : store->multiGet(keys)) texts.emplace_back(bytes.begin(), bytes.end());
    return texts;
  };
  try {
    auto texts = call_within(store->getTimeout() + kGrace, exchange);
    if (!texts) throw std::runtime_error("timeout: the store does not answer");
    return std::move(*texts);
  } catch (const util::Error&) {
    throw;
  } catch (const std::exception& error) {
    std::string cause = first_line(error.what());
    util::fail(says_timeout(cause) ? ErrorKind::kTimeout : ErrorKind::kPeerLost, "rank ", environment.rank,
               " has not heard from all of its ", environment.world_size - 1, " peers at ",
               environment.master_addr, ":", environment.master_port, ": ", cause);
  }
}

void leave_store(RunStore& store, const LaunchEnvironment& environment) {
  const std::string purpose = "left";
  if (environment.rank == 0) {
    exchange_texts(store, environment, purpose, "");
  } else {
    store->set(key_of(purpose, environment.rank), std::vector<uint8_t>());
  }
}

}  // namespace fsdp::comm
