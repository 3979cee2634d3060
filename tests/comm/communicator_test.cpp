// Every communicator keeps the same promises: the same tests over threads, gloo and a world of one.

#include "comm/communicator.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "comm/gloo_communicator.h"
#include "comm/single_communicator.h"
#include "comm/thread_communicator.h"
#include "support/free_port.h"
#include "util/error.h"

namespace fsdp::comm {
namespace {

using util::Error;
using util::ErrorKind;

struct Setting {
  std::string backend;
  int world_size;
};

/// Ranks as threads over real sockets. c10d's flight recorder is one for the process and not thread-safe: it
/// is turned off before the first group reads the variable.
void run_over_gloo(int world_size, const std::function<void(Communicator&)>& body,
                   double timeout_seconds = 20) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  int port = testing::free_port();
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        LaunchEnvironment environment{rank, world_size, rank, world_size, "127.0.0.1", port};
        auto communicator = make_gloo_communicator(environment, {"gloo", timeout_seconds});
        body(*communicator);
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

class Collectives : public ::testing::TestWithParam<Setting> {
 protected:
  void run(const std::function<void(Communicator&)>& body) {
    const Setting& setting = GetParam();
    if (setting.backend == "threads") run_ranks_as_threads(setting.world_size, body);
    if (setting.backend == "gloo") run_over_gloo(setting.world_size, body);
    if (setting.backend == "single") {
      SingleCommunicator single;
      body(single);
    }
  }
};

TEST_P(Collectives, AllGatherJoinsThePartsInRankOrder) {
  run([](Communicator& communicator) {
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte}) {
      at::Tensor mine = at::full({3}, communicator.rank() + 1, dtype);
      at::Tensor all = communicator.allocate(3 * communicator.world_size(), dtype);
      communicator.all_gather(all, mine, {.unit = "test"})->wait();
      for (int rank = 0; rank < communicator.world_size(); ++rank) {
        EXPECT_TRUE(at::equal(all.narrow(0, rank * 3, 3), at::full({3}, rank + 1, dtype)));
      }
    }
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankTheSumOfItsPart) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    at::Tensor input = at::arange(world * 2, at::kFloat) * (communicator.rank() + 1);
    at::Tensor output = at::empty({2});
    communicator.reduce_scatter(output, input, {.unit = "test"})->wait();
    float factor = static_cast<float>(world * (world + 1)) / 2;
    EXPECT_TRUE(at::equal(
        output, at::arange(communicator.rank() * 2, communicator.rank() * 2 + 2, at::kFloat) * factor));
  });
}

TEST_P(Collectives, AllReduceSumsAndFindsTheMaximum) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    at::Tensor sum = at::full({2}, communicator.rank() + 1, at::kDouble);
    communicator.all_reduce(sum, ReduceOp::kSum, {.unit = "test"})->wait();
    EXPECT_EQ(sum[1].item<double>(), world * (world + 1) / 2);
    at::Tensor largest = at::full({1}, communicator.rank(), at::kDouble);
    communicator.all_reduce(largest, ReduceOp::kMax, {.unit = "test"})->wait();
    EXPECT_EQ(largest[0].item<double>(), world - 1);
  });
}

TEST_P(Collectives, BroadcastCopiesTheRoot) {
  run([](Communicator& communicator) {
    int root = communicator.world_size() - 1;
    at::Tensor value = at::full({4}, communicator.rank(), at::kFloat);
    communicator.broadcast(value, root, {.unit = "test"})->wait();
    EXPECT_TRUE(at::equal(value, at::full({4}, root, at::kFloat)));
  });
}

TEST_P(Collectives, SeveralMayBeUnderWay) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    at::Tensor mine = at::full({1000}, communicator.rank(), at::kFloat), all = at::empty({1000 * world});
    at::Tensor gradient = at::ones({1000 * world}), part = at::empty({1000});
    auto gather = communicator.all_gather(all, mine, {.unit = "a"});
    auto reduce = communicator.reduce_scatter(part, gradient, {.unit = "b"});
    gather->wait();
    reduce->wait();
    EXPECT_EQ(all[-1].item<float>(), world - 1);
    EXPECT_EQ(part[0].item<float>(), world);
  });
}

TEST_P(Collectives, TextsOfAllRanksArrive) {
  run([](Communicator& communicator) {
    std::string mine(static_cast<size_t>(communicator.rank() * 5), 'x');
    auto texts = all_gather_text(communicator, mine, {.unit = "test"});
    ASSERT_EQ(static_cast<int>(texts.size()), communicator.world_size());
    for (size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank], std::string(rank * 5, 'x'));
    communicator.barrier({.unit = "end"});
  });
}

TEST_P(Collectives, AgreeMakesEveryRankFailWithTheFirstFailure) {
  run([](Communicator& communicator) {
    int last = communicator.world_size() - 1;
    agree(communicator, "nothing wrong", [] {});
    try {
      agree(communicator, "setup", [&] {
        if (communicator.rank() == last) util::fail(ErrorKind::kData, "no such file");
      });
      FAIL() << "expected an error on rank " << communicator.rank();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(std::string(error.what()).find("no such file"), std::string::npos);
    }
    communicator.barrier({.unit = "still usable"});
  });
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Values(Setting{"single", 1}, Setting{"threads", 1}, Setting{"threads", 2},
                                           Setting{"threads", 5}, Setting{"gloo", 2}, Setting{"gloo", 3}),
                         [](const auto& info) {
                           return info.param.backend + std::to_string(info.param.world_size);
                         });

TEST(ThreadCommunicator, ARankThatThrowsEndsTheOthers) {
  EXPECT_THROW(run_ranks_as_threads(3,
                                    [](Communicator& communicator) {
                                      if (communicator.rank() == 1) throw std::logic_error("rank 1 gave up");
                                      communicator.barrier({.unit = "never"});
                                    }),
               std::logic_error);
}

TEST(ThreadCommunicator, ARankThatEndsEarlyEndsTheOthers) {
  EXPECT_THROW(run_ranks_as_threads(2,
                                    [](Communicator& communicator) {
                                      if (communicator.rank() == 0) communicator.barrier({.unit = "alone"});
                                    }),
               Error);
}

TEST(GlooCommunicator, ALostPeerIsAnErrorThatNamesCollectiveAndRank) {
  std::atomic<int> checked = 0;
  auto body = [&](Communicator& communicator) {
    if (communicator.rank() == 2) return;  // its sockets close
    at::Tensor all = at::empty({3}), mine = at::ones({1});
    try {
      communicator.all_gather(all, mine, {.unit = "model.layers.1", .pass = "forward"})->wait();
    } catch (const Error& error) {
      std::string text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << text;
      EXPECT_NE(text.find("all_gather of model.layers.1 (forward)"), std::string::npos) << text;
      EXPECT_NE(text.find("no answer from rank 2"), std::string::npos) << text;
      ++checked;
    }
  };
  run_over_gloo(3, body);
  EXPECT_EQ(checked, 2);
}

TEST(GlooCommunicator, APeerThatDoesNotComeIsATimeout) {
  std::atomic<bool> done = false;
  std::atomic<int> timeouts = 0;
  run_over_gloo(
      2,
      [&](Communicator& communicator) {
        if (communicator.rank() == 1) {
          while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          return;
        }
        try {
          at::Tensor value = at::ones({1});
          communicator.all_reduce(value, ReduceOp::kSum, {.unit = "loss"})->wait();
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
          EXPECT_NE(std::string(error.what()).find("no answer from rank 1"), std::string::npos)
              << error.what();
          ++timeouts;
        }
        done = true;
      },
      3.0);
  EXPECT_EQ(timeouts, 1);
}

TEST(GlooCommunicator, ARendezvousThatStaysIncompleteSaysHowManyWereExpected) {
  LaunchEnvironment environment{0, 2, 0, 2, "127.0.0.1", testing::free_port()};
  try {
    make_gloo_communicator(environment, {"gloo", 1.0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
    EXPECT_NE(std::string(error.what()).find("not all of the 2 processes came"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdp::comm
