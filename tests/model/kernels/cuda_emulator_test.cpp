// The defects of kernels that tests/support/cuda_emulator.h detects.

#include "support/cuda_emulator.h"

#include <gtest/gtest.h>

#include "model/kernels/cuda/block_sum.cuh"

namespace fsdp::kernels::cuda {
namespace {

struct Numbers {
  int* values = nullptr;
};

template <void (*kBody)(const Numbers&, int&)>
struct Kernel {
  using Arguments = Numbers;
  using Shared = int;
  static constexpr int kThreads = 64;
  static void run(const Numbers& numbers, int& shared) { kBody(numbers, shared); }
};

template <void (*kBody)(const Numbers&, int&)>
void run(int* values = nullptr, Schedule schedule = Schedule::kAscending) {
  EmulatedLaunch(schedule).run<Kernel<kBody>>(Grid{2}, {values});
}

void numbers_itself(const Numbers& numbers, int&) {
  numbers.values[block() * 64 + thread()] = static_cast<int>(block() * 100 + thread());
}
void exchanges(const Numbers& numbers, int&) {
  const int other = shuffle_xor(thread(), 5);
  const uint32_t odd = ballot(thread() % 2 == 1);
  numbers.values[thread()] = other + (odd == 0xaaaaaaaaU ? 0 : 1000);
}
void hands_on(const Numbers& numbers, int& shared) {
  if (thread() == 63) shared = 7;
  sync_block();
  numbers.values[thread()] = shared;
}
void hands_on_without_barrier(const Numbers& numbers, int& shared) {
  if (thread() == 63) shared = 7;
  numbers.values[thread()] = shared;
}
void syncs_in_one_warp(const Numbers&, int&) {
  if (warp() == 0) sync_block();
}
void syncs_at_two_places(const Numbers&, int&) {
  if (thread() < 32) {
    sync_block();
  } else {
    sync_block();
  }
}
void shuffles_in_half_a_warp(const Numbers&, int&) {
  if (thread() < 16) shuffle_xor(1, 1);
}
void throws(const Numbers&, int&) { require(thread() != 9); }

TEST(CudaEmulator, RunsEveryThreadOfEveryBlock) {
  std::vector<int> values(128, -1);
  run<numbers_itself>(values.data());
  for (int i = 0; i < 128; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], i / 64 * 100 + i % 64);
}

TEST(CudaEmulator, ExchangesValuesWithinWarps) {
  std::vector<int> values(64);
  run<exchanges>(values.data());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], i ^ 5);
}

TEST(CudaEmulator, LetsSharedMemoryBeReadBehindABarrier) {
  for (Schedule schedule : {Schedule::kAscending, Schedule::kDescending, Schedule::kShuffled}) {
    std::vector<int> values(64);
    run<hands_on>(values.data(), schedule);
    EXPECT_EQ(values, std::vector<int>(64, 7));
  }
}

TEST(CudaEmulator, ShowsAMissingBarrierByTheOrderOfThreads) {
  std::vector<int> ascending(64), descending(64);
  run<hands_on_without_barrier>(ascending.data(), Schedule::kAscending);
  run<hands_on_without_barrier>(descending.data(), Schedule::kDescending);
  EXPECT_NE(ascending, descending);
  EXPECT_EQ(ascending[0], -1) << "shared memory begins as ones in every bit";
}

TEST(CudaEmulator, RefusesThreadsThatDoNotMeet) {
  EXPECT_THROW(run<syncs_in_one_warp>(), std::logic_error);
  EXPECT_THROW(run<syncs_at_two_places>(), std::logic_error);
  EXPECT_THROW(run<shuffles_in_half_a_warp>(), std::logic_error);
}

TEST(CudaEmulator, PassesOnWhatAThreadThrows) { EXPECT_THROW(run<throws>(), std::logic_error); }

struct Sums {
  double* to = nullptr;
};
struct SumKernelOfThreads {
  using Arguments = Sums;
  static constexpr int kThreads = 96;
  using Sum = BlockReduction<double, kThreads>;
  using Shared = Sum::Shared;
  static void run(const Sums& sums, Shared& shared) { sums.to[thread()] = Sum::sum(thread() + 1, shared); }
};

TEST(BlockReduction, GivesTheSumToAllThreads) {
  std::vector<double> sums(96);
  EmulatedLaunch().run<SumKernelOfThreads>(Grid{1}, {sums.data()});
  EXPECT_EQ(sums, std::vector<double>(96, 96 * 97 / 2));
}

}  // namespace
}  // namespace fsdp::kernels::cuda
