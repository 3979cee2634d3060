// Waiting over gloo, which the launcher may break off.

#include "comm/gloo/gloo_communicator.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/util/error.h"
#include "comm/gloo/gloo_exchange.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// One of two ranks waits for the other, which does nothing, with a time-out of a minute; the epoch is broken
/// off meanwhile.
void expect_end_of_waiting(const std::function<void(const LaunchEnvironment&, RunStore)>& wait,
                           const std::function<void(const LaunchEnvironment&, RunStore)>& join) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> broken_off = false;
  LaunchEnvironment environment;
  environment.world_size = environment.local_world_size = 2;
  environment.is_broken_off = [&] { return broken_off.load(); };
  std::promise<void> over;
  std::thread other([&, environment]() mutable {
    environment.rank = environment.local_rank = 1;
    join(environment, store);
    broken_off = true;
    over.get_future().wait();
  });
  const auto begin = Clock::now();
  try {
    wait(environment, store);
    ADD_FAILURE() << "nobody answers";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr("told the ranks to leave this group"));
  }
  EXPECT_LT(Clock::now() - begin, milliseconds(30'000));
  over.set_value();
  other.join();
}

TEST(GlooExchange, WaitsNoLongerThanUntilTheEpochIsBrokenOff) {
  const auto place = [](const LaunchEnvironment& environment, RunStore store) {
    return gloo_place(environment, {.timeout_seconds = 60}, std::move(store));
  };
  std::unique_ptr<GlooExchange> silent;
  expect_end_of_waiting(
      [&](const LaunchEnvironment& environment, RunStore store) {
        GlooExchange exchange(place(environment, store), "test", 0, 2);
        exchange.wait(exchange.receive(1, 7, at::empty({4})));
      },
      [&](const LaunchEnvironment& environment, RunStore store) {
        silent = std::make_unique<GlooExchange>(place(environment, store), "test", 1, 2);
      });
}

TEST(GlooCommunicator, WaitsNoLongerThanUntilTheEpochIsBrokenOff) {
  std::unique_ptr<Communicator> silent;
  expect_end_of_waiting(
      [&](const LaunchEnvironment& environment, RunStore store) {
        make_gloo_communicator(environment, {.timeout_seconds = 60}, store)
            ->all_reduce(at::ones({4}), ReduceOp::kSum, {.unit = "numbers"})
            ->wait();
      },
      [&](const LaunchEnvironment& environment, RunStore store) {
        silent = make_gloo_communicator(environment, {.timeout_seconds = 60}, store);
      });
}

}  // namespace
}  // namespace fsdp::comm
