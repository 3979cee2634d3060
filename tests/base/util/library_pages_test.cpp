#include "base/util/library_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <string>

#include "base/util/system.h"

namespace fsdp::util {
namespace {

/// Enough code and constants of this program to fill pages.
const volatile char kTable[1 << 16] = {1, 2, 3};

int64_t file_bytes() { return *kilobytes("/proc/self/status", "RssFile"); }

TEST(LibraryPages, AreUnmappedAndMappedAgainWhenUsed) {
  if (!std::ifstream("/proc/self/pagemap")) GTEST_SKIP() << "/proc/self/pagemap cannot be read";
  int64_t sum = 0;
  for (char value : kTable) sum += value;
  const int64_t before = file_bytes();
  const int64_t unmapped = unmap_library_pages();
  EXPECT_GT(unmapped, int64_t{1} << 20);
  EXPECT_LT(file_bytes(), before - unmapped / 2);
  int64_t again = 0;
  for (char value : kTable) again += value;
  EXPECT_EQ(again, sum);
  EXPECT_EQ(sum, 6);
}

TEST(LibraryPages, StayWhereThisProcessHasChangedThem) {
  // As a debugger changes code.
  const auto page = static_cast<uintptr_t>(page_bytes());
  const auto address = reinterpret_cast<uintptr_t>(kTable) + sizeof(kTable) / 2;
  void* const begin = reinterpret_cast<void*>(address / page * page);
  ASSERT_EQ(::mprotect(begin, page, PROT_READ | PROT_WRITE), 0);
  const_cast<volatile char&>(kTable[sizeof(kTable) / 2]) = 7;
  ASSERT_EQ(::mprotect(begin, page, PROT_READ), 0);
  unmap_library_pages();
  EXPECT_EQ(kTable[sizeof(kTable) / 2], 7);
}

}  // namespace
}  // namespace fsdp::util
