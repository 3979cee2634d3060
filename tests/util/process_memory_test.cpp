#include "util/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace fsdp::util {
namespace {

TEST(ProcessMemory, ThePeakStaysWhenMemoryIsGivenBack) {
  constexpr size_t kBytes = 64 << 20;
  int64_t before = resident_bytes();
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  int64_t during = resident_bytes();
  munmap(memory, kBytes);
  constexpr int64_t kSlack = 8 << 20;  // other threads, the kernel's lazy counters
  EXPECT_GE(during, before + static_cast<int64_t>(kBytes) - kSlack);
  EXPECT_GE(peak_resident_bytes(), during - kSlack);
  EXPECT_LT(resident_bytes(), during - static_cast<int64_t>(kBytes) / 2);
}

}  // namespace
}  // namespace fsdp::util
