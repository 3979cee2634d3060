#include "base/tensor/mapped_allocator.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/util/system.h"

namespace fsdp::util {
namespace {

constexpr size_t kMib = 1 << 20;

class MappedAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override { allocator_.trim(); }
  MappedAllocator& allocator_ = MappedAllocator::instance();
};

TEST_F(MappedAllocatorTest, GivesABlockAgainToARequestOfItsSize) {
  c10::DataPtr first = allocator_.allocate(kMib);
  void* place = first.get();
  first.clear();
  EXPECT_EQ(allocator_.held_bytes(), kMib);
  EXPECT_EQ(allocator_.live_bytes(), 0);
  c10::DataPtr again = allocator_.allocate(kMib - 100);
  EXPECT_EQ(again.get(), place);
  EXPECT_EQ(allocator_.held_bytes(), kMib);
}

TEST_F(MappedAllocatorTest, HoldsNoMoreThanWasEverNeededAtOnce) {
  const int64_t before = resident_bytes();
  for (size_t size = 1; size < 64; ++size) {
    c10::DataPtr block = allocator_.allocate(size * kMib);
    std::memset(block.get(), 1, size * kMib);
  }
  EXPECT_LE(allocator_.held_bytes(), most_held_bytes(63 * kMib));
  EXPECT_LT(resident_bytes() - before, 84 * kMib);
  allocator_.trim();
  EXPECT_EQ(allocator_.held_bytes(), 0);
  EXPECT_LT(resident_bytes() - before, 8 * kMib);
}

TEST_F(MappedAllocatorTest, ServesARequestFromFreedNeighbours) {
  std::vector<c10::DataPtr> small;
  for (int i = 0; i < 48; ++i) small.push_back(allocator_.allocate(kMib));
  const c10::DataPtr other = allocator_.allocate(kMib);
  small.clear();
  const int64_t before = allocator_.held_bytes();
  const c10::DataPtr large = allocator_.allocate(40 * kMib);
  EXPECT_EQ(allocator_.held_bytes(), before);
}

TEST_F(MappedAllocatorTest, ReturnsWhatIsTooShortToTheSystemWhenAnotherPlaceWouldBeTooMuch) {
  std::vector<c10::DataPtr> kept, freed;
  for (int i = 0; i < 64; ++i) {
    for (auto* blocks : {&kept, &freed}) {
      blocks->push_back(allocator_.allocate(kMib));
      std::memset(blocks->back().get(), 1, kMib);
    }
  }
  const int64_t before = resident_bytes();
  freed.clear();
  const c10::DataPtr large = allocator_.allocate(60 * kMib);
  std::memset(large.get(), 1, 60 * kMib);
  EXPECT_LE(allocator_.held_bytes(), most_held_bytes(128 * kMib));
  // Beyond the spare 16 MiB, the kernel's khugepaged may fill returned halves of huge pages again, 8 of them
  // each time it wakes. If nothing were returned, it would be 60 MiB.
  EXPECT_LT(resident_bytes() - before, 40 * kMib);
}

TEST_F(MappedAllocatorTest, AlignsAsKernelsExpect) {
  for (size_t bytes : {size_t{1}, 200 * kMib / 1024, kMib, 5 * kMib + 17, 64 * kMib}) {
    c10::DataPtr block = allocator_.allocate(bytes);
    const auto address = reinterpret_cast<uintptr_t>(block.get());
    EXPECT_EQ(address % 64, 0) << bytes;
    std::memset(block.get(), 1, bytes);
  }
}

/// Whether the kernel was asked for huge pages at the address.
bool asks_for_huge_pages(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto place = reinterpret_cast<uintptr_t>(address);
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_here = begin <= place && place < end;
    if (is_here && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
  }
  return false;
}

TEST_F(MappedAllocatorTest, PutsSmallBlocksSideBySideOnHugePages) {
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(allocator_.allocate(kMib));
  int adjacent = 0;
  for (size_t i = 1; i < blocks.size(); ++i) {
    const auto* before = static_cast<const std::byte*>(blocks[i - 1].get());
    adjacent += blocks[i].get() == before + kMib;
    EXPECT_TRUE(asks_for_huge_pages(blocks[i].get())) << i;
  }
  EXPECT_GE(adjacent, 90);
}

TEST_F(MappedAllocatorTest, ServesRawPointersOfAllSizes) {
  for (size_t bytes : {size_t{100}, 3 * kMib}) {
    void* data = allocator_.raw_allocate(bytes);
    std::memset(data, 1, bytes);
    allocator_.raw_deallocate(data);
  }
  EXPECT_EQ(allocator_.live_bytes(), 0);
  EXPECT_EQ(allocator_.allocate(0).get(), nullptr);
}

TEST_F(MappedAllocatorTest, SaysWhenTheSystemHasNoMore) {
  EXPECT_THROW(allocator_.allocate(size_t{1} << 60), c10::Error);
  EXPECT_EQ(allocator_.live_bytes(), 0);
}

TEST_F(MappedAllocatorTest, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = kMib / 4 * static_cast<size_t>(1 + (i + thread) % 5);
        c10::DataPtr block = allocator_.allocate(bytes);
        std::memset(block.get(), thread, bytes);
        EXPECT_EQ(static_cast<char*>(block.get())[bytes - 1], thread);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator_.live_bytes(), 0);
}

}  // namespace
}  // namespace fsdp::util
