// torchrun keeps a store at MASTER_ADDR:MASTER_PORT itself, and keeps it over its restarts.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "comm/gloo/gloo_communicator.h"

namespace fsdp::comm {
namespace {

/// The sum over two ranks of (rank + 1), as rank 0 has it.
double sum_of_two_ranks(int port, int restarts) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(2);
  double sum = 0;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LaunchEnvironment environment;
        environment.rank = environment.local_rank = rank;
        environment.world_size = environment.local_world_size = 2;
        environment.master_port = port;
        environment.launcher_keeps_store = true;
        environment.restarts = restarts;
        CommOptions options;
        options.timeout_seconds = 20;
        auto communicator = make_gloo_communicator(environment, options);
        at::Tensor value = at::full({1}, static_cast<double>(rank + 1), at::kFloat);
        communicator->all_reduce(value, ReduceOp::kSum, {"test", "other"})->wait();
        if (rank == 0) sum = value.item<double>();
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return sum;
}

TEST(LauncherStore, ServesTheRanksOfEveryRestart) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (int restarts = 0; restarts < 3; ++restarts) EXPECT_EQ(sum_of_two_ranks(store->getPort(), restarts), 3);
}

}  // namespace
}  // namespace fsdp::comm
