// Every communicator keeps the same promises: the same tests over threads, shared memory, gloo, several hosts
// and a world of one.

#include "comm/api/communicator.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <map>
#include <thread>

#include "base/util/error.h"
#include "comm/api/coding.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/threads/thread_communicator.h"
#include "support/connected_ranks.h"
#include "support/free_port.h"

namespace fsdp::comm {
namespace {

using util::Error;

struct Setting {
  std::string backend;
  int world_size;
};

/// Numbers whose sum depends on the order and the precision of the additions.
at::Tensor numbers_of(int rank, int64_t numel, at::ScalarType dtype) {
  at::Tensor index = at::arange(numel, at::kDouble) + 1000.0 * rank;
  return (at::sin(index * 12.9898) * (rank % 2 == 0 ? 100.0 : 1.0)).to(dtype);
}

/// One part after another or in pairs.
at::Tensor sum_of(const std::vector<at::Tensor>& parts, bool in_pairs) {
  const size_t count = parts.size();
  if (count == 1) return parts[0];
  const auto middle = parts.begin() + static_cast<int64_t>(in_pairs ? std::bit_floor(count - 1) : count - 1);
  return sum_of({parts.begin(), middle}, in_pairs) + sum_of({middle, parts.end()}, in_pairs);
}

/// The sum over ranks of numbers_of(), added in float32 and rounded once: in rank order, numbers in float32
/// in pairs, where there are several hosts in that on each host, and then by host.
at::Tensor sum_of_numbers(const Setting& setting, int64_t numel, at::ScalarType dtype) {
  std::vector<int> hosts = testing::hosts_in(setting.backend, setting.world_size);
  hosts.resize(static_cast<size_t>(setting.world_size));
  std::map<int, std::vector<at::Tensor>> on_hosts;
  for (int rank = 0; rank < setting.world_size; ++rank) {
    on_hosts[hosts[static_cast<size_t>(rank)]].push_back(numbers_of(rank, numel, dtype).to(at::kFloat));
  }
  const bool in_pairs = dtype == at::kFloat;
  std::vector<at::Tensor> sums;
  for (const auto& [host, numbers] : on_hosts) sums.push_back(sum_of(numbers, in_pairs));
  return sum_of(sums, in_pairs).to(dtype);
}

class Collectives : public ::testing::TestWithParam<Setting> {
 protected:
  void run(const std::function<void(Communicator&)>& body) {
    const Setting& setting = GetParam();
    if (setting.backend == "threads") run_ranks_as_threads(setting.world_size, body);
    if (setting.backend == "single") {
      SingleCommunicator single;
      body(single);
    }
    if (setting.backend == "threads" || setting.backend == "single") return;
    testing::run_ranks_over(setting.backend, {.world_size = setting.world_size},
                            [&](std::shared_ptr<Communicator>& communicator) { body(*communicator); });
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

TEST_P(Collectives, AllGatherWorksInPlace) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      at::Tensor all = communicator.allocate(3 * world, dtype);
      all.zero_();
      at::Tensor mine = all.narrow(0, 3 * communicator.rank(), 3);
      mine.fill_(communicator.rank() + 1);
      communicator.all_gather(all, mine, {.unit = "test"})->wait();
      EXPECT_TRUE(at::equal(all, at::arange(1, world + 1).repeat_interleave(3).to(dtype)));
    }
  });
}

TEST_P(Collectives, ReduceScatterAddsInRankOrderAndRoundsOnce) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    constexpr int64_t kPart = 70'000;
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      at::Tensor input = numbers_of(communicator.rank(), world * kPart, dtype);
      at::Tensor expected =
          sum_of_numbers(GetParam(), world * kPart, dtype).narrow(0, communicator.rank() * kPart, kPart);
      at::Tensor output = at::empty({kPart}, dtype);
      communicator.reduce_scatter(output, input, {.unit = "test"})->wait();
      EXPECT_TRUE(at::equal(output, expected)) << c10::toString(dtype);
      at::Tensor in_place = input.narrow(0, communicator.rank() * kPart, kPart);
      communicator.reduce_scatter(in_place, input, {.unit = "in place"})->wait();
      EXPECT_TRUE(at::equal(in_place, expected)) << c10::toString(dtype);
    }
  });
}

/// The numbers of a rank as the others decode them.
at::Tensor decoded_numbers(LinkType type, const at::Tensor& numbers) {
  const at::Tensor bytes = at::empty({link_bytes(type, numbers.numel(), 4)}, at::kByte);
  encode(type, numbers.contiguous(), bytes);
  at::Tensor back = at::empty(numbers.sizes(), at::kFloat);
  decode(type, bytes, back);
  return back;
}

TEST_P(Collectives, CodedAllGatherGivesAllRanksWhatTheCodesSay) {
  run([](Communicator& communicator) {
    for (const LinkType type : {LinkType::kInt8, LinkType::kInt4}) {
      for (const int64_t part : {1L, 300L, 2 * kCodedPiece + 301}) {
        const auto coding = std::make_shared<Coding>(Coding{.type = type});
        at::Tensor all = at::zeros({part * communicator.world_size()});
        communicator
            .coded_all_gather(all, numbers_of(communicator.rank(), part, at::kFloat), coding,
                              {.unit = "test"})
            ->wait();
        for (int rank = 0; rank < communicator.world_size(); ++rank) {
          EXPECT_TRUE(at::equal(all.narrow(0, rank * part, part),
                                decoded_numbers(type, numbers_of(rank, part, at::kFloat))));
        }
      }
    }
  });
}

// Sums of a host's ranks are exact, and so is what a rank, or its host, adds to its own part.
TEST_P(Collectives, CodedReduceScatterCodesEachHopOnce) {
  run([](Communicator& communicator) {
    const int world = communicator.world_size(), rank = communicator.rank();
    std::vector<int> hosts = testing::hosts_in(GetParam().backend, world);
    const bool has_hosts = !hosts.empty() && communicator.coded_parts() != world;
    if (!has_hosts) {
      hosts.clear();
      for (int each = 0; each < world; ++each) hosts.push_back(each);
    }
    for (const LinkType type : {LinkType::kInt8, LinkType::kInt4}) {
      for (const int64_t part : {1L, 300L, 2 * kCodedPiece + 301}) {
        std::map<int, std::vector<at::Tensor>> on_hosts;
        for (int other = 0; other < world; ++other) {
          on_hosts[hosts[static_cast<size_t>(other)]].push_back(
              numbers_of(other, world * part, at::kFloat).narrow(0, rank * part, part));
        }
        at::Tensor expected;
        for (const auto& [host, numbers] : on_hosts) {
          at::Tensor sum = sum_of(numbers, /*in_pairs=*/true);
          if (host != hosts[static_cast<size_t>(rank)]) sum = decoded_numbers(type, sum);
          expected = expected.defined() ? expected + sum : sum;
        }
        const at::Tensor input = numbers_of(rank, world * part, at::kFloat);
        const auto coding = std::make_shared<Coding>(Coding{.type = type});
        at::Tensor output = at::empty({part});
        int64_t finished = 0;
        const auto finish = [&](const float*, int64_t n) {
          EXPECT_EQ(n, std::min(kFinishedRun, part - finished));
          finished += n;
        };
        communicator.coded_reduce_scatter(output, input, coding, finish, {.unit = "test"})->wait();
        EXPECT_EQ(finished, part);
        EXPECT_TRUE(at::equal(output, expected)) << part;
        EXPECT_TRUE(at::equal(input, numbers_of(rank, world * part, at::kFloat)));
        const at::Tensor in_place = input.narrow(0, rank * part, part);
        communicator.coded_reduce_scatter(in_place, input, coding, {}, {.unit = "in place"})->wait();
        EXPECT_TRUE(at::equal(in_place, expected)) << part;
      }
    }
  });
}

TEST_P(Collectives, CodedAllReduceEndsInTheSameBitsOnAllRanks) {
  run([](Communicator& communicator) {
    const int world = communicator.world_size();
    const auto coding = std::make_shared<Coding>(Coding{.type = LinkType::kInt8});
    for (const int64_t numel : {1L, 1'000L, 3 * kCodedPiece + 1}) {
      at::Tensor sum = numbers_of(communicator.rank(), numel, at::kFloat);
      communicator.coded_all_reduce(sum, coding, {.unit = "test"})->wait();
      at::Tensor all = at::empty({world * numel});
      communicator.all_gather(all, sum, {.unit = "test"})->wait();
      for (int rank = 0; rank < world; ++rank) {
        EXPECT_TRUE(at::equal(all.narrow(0, rank * numel, numel), sum));
      }
      const at::Tensor exact = sum_of_numbers(GetParam(), numel, at::kFloat);
      EXPECT_LT((sum - exact).abs().max().item<float>(), 100.0 * (world + 1) / 127);
    }
  });
}

TEST_P(Collectives, ReduceScatterFinishesTheSumsInRunsFromFrontToBack) {
  run([](Communicator& communicator) {
    const int world = communicator.world_size();
    for (const int64_t part : {1'000L, 1'200'001L}) {  // the latter is written past the cache
      const at::Tensor input = numbers_of(communicator.rank(), world * part, at::kFloat);
      at::Tensor expected = at::empty({part});
      communicator.reduce_scatter(expected, input, {.unit = "test"})->wait();
      at::Tensor output = at::empty({part});
      int64_t finished = 0;
      const auto finish = [&](float* sums, int64_t n) {
        EXPECT_EQ(n, std::min(kFinishedRun, part - finished));
        EXPECT_EQ(sums[0], expected.const_data_ptr<float>()[finished]);
        for (int64_t i = 0; i < n; ++i) sums[i] = 2 * sums[i] + 1;
        finished += n;
      };
      communicator.reduce_scatter_and_finish(output, input, finish, {.unit = "test"})->wait();
      EXPECT_EQ(finished, part);
      EXPECT_TRUE(at::equal(output, 2 * expected + 1)) << part;
    }
  });
}

TEST_P(Collectives, AllReduceKnowsTheTypesOfTraining) {
  run([](Communicator& communicator) {
    int world = communicator.world_size();
    for (auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      // Halves lose each 1 when they round after every addition.
      double large = dtype == at::kBFloat16 ? 256 : dtype == at::kHalf ? 2048 : 1 << 20;
      at::Tensor sum = at::full({2, 2}, communicator.rank() == 0 ? large : 1.0, dtype);
      communicator.all_reduce(sum, ReduceOp::kSum, {.unit = "test"})->wait();
      EXPECT_TRUE(at::equal(sum, at::full({2, 2}, large + world - 1, dtype))) << c10::toString(dtype);
      at::Tensor largest = at::full({}, -communicator.rank(), dtype);
      communicator.all_reduce(largest, ReduceOp::kMax, {.unit = "test"})->wait();
      EXPECT_EQ(largest.item<double>(), 0) << c10::toString(dtype);
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
    for (int64_t numel : {4, 5'001}) {
      at::Tensor value = numbers_of(communicator.rank(), numel, at::kFloat);
      communicator.broadcast(value, root, {.unit = "test"})->wait();
      EXPECT_TRUE(at::equal(value, numbers_of(root, numel, at::kFloat)));
    }
  });
}

TEST_P(Collectives, ShiftSendsToTheNextRankAndReceivesFromTheOneBefore) {
  run([](Communicator& communicator) {
    const int world = communicator.world_size(), rank = communicator.rank();
    const int previous = (rank + world - 1) % world;
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte}) {
      for (int64_t numel : {0, 1, 3, 1000, 8191, 70'001}) {
        at::Tensor mine = numbers_of(rank, numel, dtype), expected = numbers_of(previous, numel, dtype);
        at::Tensor shared = communicator.allocate(numel, dtype).copy_(mine);
        at::Tensor output = communicator.allocate(numel, dtype), ordinary = at::empty({numel}, dtype);
        auto first = communicator.shift(output, shared, {.unit = "keys"});
        auto second = communicator.shift(ordinary, mine, {.unit = "values"});
        first->wait();
        second->wait();
        EXPECT_TRUE(at::equal(output, expected)) << numel << " of " << c10::toString(dtype);
        EXPECT_TRUE(at::equal(ordinary, expected)) << numel << " of " << c10::toString(dtype);
        EXPECT_TRUE(at::equal(shared, mine)) << "the input is only read";
      }
    }
  });
}

TEST_P(Collectives, ShiftsGoAllTheWayAroundBesideOtherCollectives) {
  run([](Communicator& communicator) {
    const int world = communicator.world_size(), rank = communicator.rank();
    for (int64_t numel : {4, 20'000}) {
      at::Tensor now = at::full({2, numel}, rank, at::kFloat), next = at::empty({2, numel});
      for (int step = 1; step <= 2 * world; ++step) {
        at::Tensor sum = at::ones({1});
        auto shifted = communicator.shift(next, now, {.unit = "ring"});
        auto summed = communicator.all_reduce(sum, ReduceOp::kSum, {.unit = "loss"});
        shifted->wait();
        summed->wait();
        ASSERT_TRUE(at::equal(next, at::full({2, numel}, (rank + 2 * world - step) % world, at::kFloat)));
        ASSERT_EQ(sum.item<int>(), world);
        std::swap(now, next);
        next.fill_(-1);
      }
    }
  });
}

TEST_P(Collectives, ShiftRefusesTensorsThatDoNotFit) {
  run([](Communicator& communicator) {
    at::Tensor three = at::ones({3}), columns = at::ones({3, 3}).t();
    EXPECT_THROW(communicator.shift(at::ones({2}), three, {.unit = "test"}), Error);
    EXPECT_THROW(communicator.shift(at::ones({3}, at::kLong), three, {.unit = "test"}), Error);
    EXPECT_THROW(communicator.shift(at::ones({3, 3}), columns, {.unit = "test"}), Error);
    communicator.barrier({.unit = "still usable"});
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

TEST_P(Collectives, HoldNoTensorOnceTheyAreDone) {
  if (GetParam().world_size == 1) return;
  run([](Communicator& communicator) {
    int64_t ranks = communicator.world_size();
    for (int i = 0; i < 200; ++i) {
      at::Tensor whole = at::ones({ranks * 1024}), part = at::empty({1024});
      communicator.reduce_scatter(part, whole, {.unit = "a"})->wait();
      ASSERT_EQ(whole.storage().use_count(), 1u) << "in round " << i;
      communicator.all_gather(whole, part, {.unit = "a"})->wait();
      ASSERT_EQ(part.storage().use_count(), 1u) << "in round " << i;
      at::Tensor moved = at::empty({1024});
      communicator.shift(moved, part, {.unit = "a"})->wait();
      ASSERT_EQ(moved.storage().use_count() + part.storage().use_count(), 2u) << "in round " << i;
    }
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
        if (communicator.rank() == last) fail(ErrorKind::kData, "no such file");
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
                                           Setting{"threads", 5}, Setting{"gloo", 2}, Setting{"gloo", 3},
                                           Setting{"direct_gloo", 2}, Setting{"shm", 2}, Setting{"shm", 3},
                                           Setting{"shm", 5}, Setting{"direct_shm", 2},
                                           Setting{"hierarchical2", 4}, Setting{"hierarchical3", 6},
                                           Setting{"hierarchical2", 6}, Setting{"scattered2", 4},
                                           Setting{"scattered3", 6}, Setting{"direct_hierarchical2", 4}),
                         [](const auto& info) {
                           return info.param.backend + "_" + std::to_string(info.param.world_size);
                         });

// In the processes that tests/comm/mpi/mpi_test.cpp starts.
std::vector<Setting> over_mpi() {
  if (!testing::is_started_by_mpirun()) return {};
  return {{"mpi", 2},
          {"mpi", 3},
          {"mpi", 5},
          {"direct_mpi", 2},
          {"mpi_pieces", 3},
          {"mpi_pieces_hierarchical2", 4},
          {"mpi_hierarchical2", 4},
          {"mpi_hierarchical3", 6},
          {"mpi_scattered2", 4}};
}
INSTANTIATE_TEST_SUITE_P(Mpi, Collectives, ::testing::ValuesIn(over_mpi()), [](const auto& info) {
  return info.param.backend + "_" + std::to_string(info.param.world_size);
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

class Failures : public ::testing::TestWithParam<std::string> {
 protected:
  void run(int world_size, double timeout_seconds, const std::function<void(Communicator&)>& body) {
    testing::run_ranks_over(GetParam(), {.world_size = world_size, .timeout_seconds = timeout_seconds},
                            [&](std::shared_ptr<Communicator>& communicator) { body(*communicator); });
  }
};

TEST_P(Failures, ALostPeerIsAnErrorThatNamesCollectiveAndRank) {
  std::atomic<int> checked = 0;
  auto body = [&](Communicator& communicator) {
    if (communicator.rank() == 2) return;  // its connections close
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
  run(3, 20, body);
  EXPECT_EQ(checked, 2);
}

// Rank 1 has its part of the shift, but not of what follows.
TEST_P(Failures, AShiftNamesALostPeerToo) {
  std::atomic<int> checked = 0;
  run(3, 20, [&](Communicator& communicator) {
    if (communicator.rank() == 2) return;  // its connections close
    at::Tensor next = at::empty({30'000}), now = at::ones({30'000});
    std::string text;
    try {
      communicator.shift(next, now, {.unit = "keys", .pass = "forward"})->wait();
      // A message that is sent before the connection is seen to be closed is no error: over gloo, rank 1
      // would then wait for rank 0 until the time-out.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      communicator.barrier({.unit = "end"});
    } catch (const Error& error) {
      text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << text;
    }
    EXPECT_NE(text.find("no answer from rank 2"), std::string::npos) << text;
    checked += text.find("shift of keys (forward)") != std::string::npos;
  });
  EXPECT_GE(checked, 1);
}

TEST_P(Failures, AShiftFromAPeerThatDoesNotComeIsATimeout) {
  std::atomic<bool> done = false;
  run(2, 1, [&](Communicator& communicator) {
    while (communicator.rank() == 1 && !done) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (communicator.rank() == 1) return;
    std::string text;
    try {
      at::Tensor next = at::empty({3}), now = at::ones({3});
      communicator.shift(next, now, {.unit = "keys"})->wait();
    } catch (const Error& error) {
      text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << text;
    }
    EXPECT_NE(text.find("shift of keys (other) failed on rank 0"), std::string::npos) << text;
    EXPECT_NE(text.find("no answer from rank 1"), std::string::npos) << text;
    done = true;
  });
}

// What rank 1 would receive is not what it waits for.
TEST_P(Failures, ShiftsOfDifferentSizesAreAnError) {
  std::atomic<int> failed = 0, left = 0;
  run(2, 1, [&](Communicator& communicator) {
    const int64_t numel = communicator.rank() == 0 ? 3 : 5;
    at::Tensor next = at::full({numel}, -1.0f), now = at::ones({numel});
    EXPECT_THROW(communicator.shift(next, now, {.unit = "keys"})->wait(), Error);
    EXPECT_TRUE(at::equal(next, at::full({numel}, -1.0f)));
    ++failed;
    for (++left; left < 2;) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  EXPECT_EQ(failed, 2);
}

TEST_P(Failures, APeerThatDoesNotComeIsATimeout) {
  std::atomic<bool> done = false;
  std::atomic<int> timeouts = 0;
  run(2, 3, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    try {
      at::Tensor value = at::ones({1});
      communicator.all_reduce(value, ReduceOp::kSum, {.unit = "loss"})->wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
      EXPECT_NE(std::string(error.what()).find("no answer from rank 1"), std::string::npos) << error.what();
      ++timeouts;
    }
    done = true;
  });
  EXPECT_EQ(timeouts, 1);
}

// Where the time is up first, connections close, which is all that the others see.
TEST_P(Failures, APeerThatDoesNotComeIsATimeoutForAll) {
  std::atomic<int> left = 0;
  run(4, 1, [&](Communicator& communicator) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200 * communicator.rank()));
    try {
      at::Tensor all = at::empty({4}), mine = at::ones({1});
      if (communicator.rank() != 3) communicator.all_gather(all, mine, {.unit = "model.layers.1"})->wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
      EXPECT_NE(std::string(error.what()).find("no answer from rank 3"), std::string::npos) << error.what();
    }
    for (++left; left < 4;) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Failures, ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return info.param; });

TEST(GlooCommunicator, ARendezvousThatStaysIncompleteSaysHowManyWereExpected) {
  LaunchEnvironment environment{0, 2, 0, 2, "127.0.0.1", testing::free_port()};
  try {
    make_gloo_communicator(environment, {Backend::kGloo, 1.0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
    EXPECT_NE(std::string(error.what()).find("not all of the 2 processes arrived"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fsdp::comm
