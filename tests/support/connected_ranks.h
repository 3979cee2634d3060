#pragma once

// Ranks that are threads of one process and talk as processes do: over real sockets, or through memory that
// each of them maps for itself, or by both, as if they were on several hosts.

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "base/util/error.h"
#include "comm/api/stream_communicator.h"
#include "comm/backends/connect_group.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/shm/shm_communicator.h"
#include "support/free_port.h"

namespace fsdp::testing {

struct ConnectedRanks {
  int world_size = 2;
  double timeout_seconds = 20;
  bool queued = true;  ///< as make_communicator() has it; otherwise collectives are complete at the call
};

using Connect = std::function<std::shared_ptr<comm::Communicator>(const comm::LaunchEnvironment&,
                                                                  const comm::CommOptions&)>;

/// Runs `body(communicator)` on every rank; the body may take the communicator away. Throws the first rank's
/// failure after all have ended.
inline void run_connected_ranks(const ConnectedRanks& ranks, const Connect& connect,
                                const std::function<void(std::shared_ptr<comm::Communicator>&)>& body) {
  int port = free_port();
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(ranks.world_size));
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::LaunchEnvironment environment{rank, ranks.world_size, rank, ranks.world_size, "127.0.0.1",
                                            port};
        comm::CommOptions options;
        options.timeout_seconds = ranks.timeout_seconds;
        std::shared_ptr<comm::Communicator> communicator = connect(environment, options);
        if (ranks.queued) communicator = comm::make_queued_communicator(std::move(communicator));
        body(communicator);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

inline void run_ranks_over_gloo(const ConnectedRanks& ranks,
                                const std::function<void(std::shared_ptr<comm::Communicator>&)>& body) {
  const auto connect = [](const comm::LaunchEnvironment& environment, const comm::CommOptions& options) {
    return comm::make_gloo_communicator(environment, options);
  };
  run_connected_ranks(ranks, connect, body);
}

inline std::shared_ptr<comm::Communicator> connect_over_shm(const comm::LaunchEnvironment& environment,
                                                            const comm::CommOptions& options) {
  comm::RunStore store = comm::join_run_store(environment, options.timeout());
  auto meeting = comm::HostRanks::meet(environment, store, {});
  FSDP_CHECK(meeting.ranks && meeting.apart.empty(), meeting.apart, meeting.obstacle);
  return comm::connect_group({meeting.ranks, {.timeout = options.timeout()}}, comm::run_identity(environment),
                             "run");
}

inline void run_ranks_over_shm(const ConnectedRanks& ranks,
                               const std::function<void(std::shared_ptr<comm::Communicator>&)>& body) {
  run_connected_ranks(ranks, connect_over_shm, body);
}

/// What a rank takes its host for that is to be alone with those of its number.
inline comm::HostRanks::Options pretended_host(int number) {
  comm::HostRanks::Options options;
  options.identity.boot_id += concat("/", number);
  return options;
}

/// Of ranks on these hosts; see comm::connect_group().
inline Connect connect_over_hosts(std::vector<int> hosts) {
  return [hosts = std::move(hosts)](const comm::LaunchEnvironment& environment,
                                    const comm::CommOptions& options) {
    comm::RunStore store = comm::join_run_store(environment, options.timeout());
    const int host = hosts.at(static_cast<size_t>(environment.rank));
    auto meeting = comm::HostRanks::meet(environment, store, pretended_host(host));
    FSDP_CHECK(meeting.ranks != nullptr, meeting.obstacle);
    return comm::connect_group({meeting.ranks, comm::gloo_place(environment, options, store)},
                               comm::run_identity(environment), "run");
  };
}

/// The host of each rank: "hierarchical3" has three with consecutive ranks, "scattered3" deals the ranks out.
/// Empty for other backends.
inline std::vector<int> hosts_in(const std::string& backend, int world_size) {
  const bool scattered = backend.find("scattered") != std::string::npos;
  if (!scattered && backend.find("hierarchical") == std::string::npos) return {};
  const int count = backend.back() - '0';
  std::vector<int> hosts;
  for (int rank = 0; rank < world_size; ++rank) {
    hosts.push_back(scattered ? rank % count : rank * count / world_size);
  }
  return hosts;
}

/// Whether this process is one of those that tests/comm/mpi/mpi_test.cpp has started by mpirun.
inline bool is_started_by_mpirun() { return std::getenv("FSDP_TEST_MPI") != nullptr; }

/// The first ranks of the run of MPI, of which this process is one: the body runs in each of theirs. On hosts
/// as they are, with "hierarchical2" and the like in the backend's name on pretended ones; with "pieces", in
/// messages of 3000 bytes at most.
inline void run_ranks_over_mpi(const std::string& backend, const ConnectedRanks& ranks,
                               const std::function<void(std::shared_ptr<comm::Communicator>&)>& body) {
  static int runs = 0;
  const std::string key = concat("run ", runs++);
  comm::MpiRun& process = comm::MpiRun::get();
  comm::LaunchEnvironment environment = process.environment();
  FSDP_CHECK(ranks.world_size <= environment.world_size);
  if (environment.rank >= ranks.world_size) return;
  environment.world_size = environment.local_world_size = ranks.world_size;
  const std::chrono::milliseconds timeout(static_cast<int64_t>(1000 * ranks.timeout_seconds));
  comm::MpiPlace place{&process, process.store(timeout), timeout};
  if (backend.find("pieces") != std::string::npos) place.most_bytes = 3000;
  const std::shared_ptr<comm::MpiGroup> world = comm::make_mpi_world(place);
  comm::RunStore store = c10::make_intrusive<c10d::PrefixStore>(key, world->place().store);
  std::shared_ptr<comm::Communicator> communicator;
  if (const auto hosts = hosts_in(backend, ranks.world_size); hosts.empty()) {
    communicator = comm::make_mpi_group(*world, comm::run_identity(environment), key);
  } else {
    const int host = hosts[static_cast<size_t>(environment.rank)];
    auto meeting = comm::HostRanks::meet(environment, store, pretended_host(host));
    FSDP_CHECK(meeting.ranks != nullptr, meeting.obstacle);
    communicator = comm::connect_group({meeting.ranks, {.store = store, .timeout = timeout}, world},
                                       comm::run_identity(environment), key);
  }
  if (ranks.queued) communicator = comm::make_queued_communicator(std::move(communicator));
  body(communicator);
}

/// "gloo", "shm", "hierarchical2", "scattered3", and with "direct_" before it: not queued; with "mpi":
/// run_ranks_over_mpi().
inline void run_ranks_over(const std::string& backend, ConnectedRanks ranks,
                           const std::function<void(std::shared_ptr<comm::Communicator>&)>& body) {
  ranks.queued = backend.find("direct_") == std::string::npos;
  if (backend.find("mpi") != std::string::npos) return run_ranks_over_mpi(backend, ranks, body);
  if (auto hosts = hosts_in(backend, ranks.world_size); !hosts.empty()) {
    return run_connected_ranks(ranks, connect_over_hosts(std::move(hosts)), body);
  }
  const bool shm = backend.find("shm") != std::string::npos;
  (shm ? run_ranks_over_shm : run_ranks_over_gloo)(ranks, body);
}

}  // namespace fsdp::testing
