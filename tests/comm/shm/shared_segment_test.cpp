#include "comm/shm/shared_segment.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/util/system.h"

namespace fsdp::comm {
namespace {

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kGib = 1 << 30;

using Blocks = std::vector<std::unique_ptr<SharedSegment::Block>>;

TEST(SharedSegment, IsTheSameMemoryForWhoOpensIt) {
  auto own = SharedSegment::create(kGib);
  auto block = SharedSegment::take(own, 5000);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->offset % util::page_bytes(), 0);
  std::memset(block->data(), 7, 5000);
  auto theirs = SharedSegment::open(::getpid(), own->fd(), own->size(), own->sign());
  EXPECT_NE(theirs->data(), own->data());
  EXPECT_EQ(std::memcmp(theirs->data() + block->offset, block->data(), 5000), 0);
  EXPECT_EQ(own->offset_of(block->data(), 5000), block->offset);
  EXPECT_EQ(own->offset_of(&kMib, 8), std::nullopt);
  EXPECT_EQ(own->offset_of(own->data() + own->size() - 4, 8), std::nullopt);
}

TEST(SharedSegment, CannotBeExecutedWhereTheKernelHasThat) {
  const int probe = ::memfd_create("probe", 8);  // MFD_NOEXEC_SEAL
  if (probe < 0) GTEST_SKIP() << "a kernel before 6.3";
  ::close(probe);
  struct stat status {};
  ASSERT_EQ(::fstat(SharedSegment::create(kGib)->fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 0111, 0u);
}

TEST(SharedSegment, HasAPartThatAllWrite) {
  auto own = SharedSegment::create(kGib);
  auto theirs = SharedSegment::open(::getpid(), own->fd(), own->size(), own->sign());
  auto block = SharedSegment::take(own, 5000, SharedSegment::Part::kCommon);
  ASSERT_NE(block, nullptr);
  std::memset(theirs->data() + block->offset, 9, 5000);
  EXPECT_EQ(static_cast<const char*>(block->data())[4999], 9);
  EXPECT_EQ(own->taken_bytes(), (5000 / util::page_bytes() + 1) * util::page_bytes()) << "whole pages";
  block.reset();
  EXPECT_EQ(own->taken_bytes(), 0);
}

TEST(SharedSegmentDeathTest, KeepsOthersFromWritingItsOwnPart) {
  auto own = SharedSegment::create(kGib);
  auto block = SharedSegment::take(own, 5000);
  auto theirs = SharedSegment::open(::getpid(), own->fd(), own->size(), own->sign());
  EXPECT_EXIT(std::memset(theirs->data() + block->offset, 9, 1), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(SharedSegment, OfAnotherProcessIsRefusedWhenItIsNotTheOneThatItTold) {
  auto own = SharedSegment::create(kGib);
  EXPECT_THROW(SharedSegment::open(::getpid(), own->fd(), own->size(), own->sign() + 2), std::runtime_error);
  EXPECT_THROW(SharedSegment::open(::getpid(), own->fd(), 2 * kGib, own->sign()), std::runtime_error);
  EXPECT_THROW(SharedSegment::open(::getpid(), 0x7fff, own->size(), own->sign()), std::runtime_error);
}

TEST(SharedSegment, TakesMemoryOnlyForItsBlocksAndGivesItBack) {
  const int64_t before = util::resident_bytes();
  auto segment = SharedSegment::create(int64_t{64} * kGib);
  EXPECT_LT(util::resident_bytes() - before, 4 * kMib);
  auto block = SharedSegment::take(segment, 64 * kMib);
  ASSERT_NE(block, nullptr);
  EXPECT_GT(util::resident_bytes() - before, 60 * kMib);
  EXPECT_EQ(segment->taken_bytes(), 64 * kMib);
  block.reset();
  EXPECT_EQ(segment->taken_bytes(), 0);
  EXPECT_LT(util::resident_bytes() - before, 4 * kMib);
}

TEST(SharedSegment, HasNoBlockWhereItHasNoRoom) {
  auto segment = SharedSegment::create(SharedSegment::kControlBytes + 16 * kMib);  // half of it common
  EXPECT_EQ(SharedSegment::take(segment, 9 * kMib), nullptr);
  auto most = SharedSegment::take(segment, 7 * kMib);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(SharedSegment::take(segment, 2 * kMib), nullptr);
  EXPECT_EQ(SharedSegment::take(segment, 9 * kMib, SharedSegment::Part::kCommon), nullptr);
  EXPECT_NE(SharedSegment::take(segment, 8 * kMib, SharedSegment::Part::kCommon), nullptr);
  most.reset();
  EXPECT_NE(SharedSegment::take(segment, 8 * kMib), nullptr);
  EXPECT_EQ(SharedSegment::take(segment, INT64_MAX - 5), nullptr);
}

// Each thread writes its mark over its blocks and finds it there later.
TEST(SharedSegment, GivesEachBlockToOne) {
  auto segment = SharedSegment::create(kGib);
  std::vector<std::thread> threads;
  for (int mark = 1; mark <= 4; ++mark) {
    threads.emplace_back([&segment, mark] {
      std::mt19937 random(static_cast<uint32_t>(mark));
      Blocks held;
      for (int i = 0; i < 300; ++i) {
        if (held.size() == 8 || (!held.empty() && random() % 2 == 0)) {
          auto& block = held[random() % held.size()];
          const auto* bytes = static_cast<const unsigned char*>(block->data());
          for (int64_t at = 0; at < block->bytes; at += 512) ASSERT_EQ(bytes[at], mark);
          std::swap(block, held.back());
          held.pop_back();
        } else {
          auto block = SharedSegment::take(segment, 1 + static_cast<int64_t>(random() % (1 << 18)));
          ASSERT_NE(block, nullptr);
          std::memset(block->data(), mark, static_cast<size_t>(block->bytes));
          held.push_back(std::move(block));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(segment->taken_bytes(), 0);
  EXPECT_NE(SharedSegment::take(segment, kGib / 4), nullptr) << "what was given back is one piece again";
}

}  // namespace
}  // namespace fsdp::comm
