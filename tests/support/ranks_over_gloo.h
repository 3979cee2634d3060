#pragma once

// Ranks that are threads of one process and talk over real sockets.

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/gloo_communicator.h"
#include "comm/queued_communicator.h"
#include "support/free_port.h"

namespace fsdp::testing {

struct GlooRanks {
  int world_size = 2;
  double timeout_seconds = 20;
  bool queued = true;  ///< as make_communicator() has it; otherwise collectives are complete at the call
};

/// Runs `body(communicator)` on every rank; the body may take the communicator away. Throws the first rank's
/// failure after all have ended. c10d's flight recorder is one for the process and not thread-safe: it is
/// turned off before the first group reads the variable.
inline void run_ranks_over_gloo(const GlooRanks& ranks,
                                const std::function<void(std::shared_ptr<comm::Communicator>&)>& body) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  int port = free_port();
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(ranks.world_size));
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::LaunchEnvironment environment{rank, ranks.world_size, rank, ranks.world_size, "127.0.0.1",
                                            port};
        std::shared_ptr<comm::Communicator> communicator =
            comm::make_gloo_communicator(environment, {"gloo", ranks.timeout_seconds});
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

}  // namespace fsdp::testing
