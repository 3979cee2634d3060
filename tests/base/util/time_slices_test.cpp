#include "base/util/time_slices.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdp::util {
namespace {

unsigned long slice_of_new_thread() {
  unsigned long slice = 0;
  std::thread([&slice] { slice = time_slice(); }).join();
  return slice;
}

TEST(ShortTimeSlices, AreThoseOfTheThreadAndOfThreadsThatItStarts) {
  const unsigned long usual = time_slice();
  if (usual == 0) GTEST_SKIP() << "Linux before 6.12 has no slices of threads";
  {
    const ShortTimeSlices slices;
    EXPECT_EQ(time_slice(), 100'000U);
    EXPECT_EQ(slice_of_new_thread(), 100'000U);
  }
  EXPECT_EQ(time_slice(), usual);
  EXPECT_EQ(slice_of_new_thread(), usual);
}

}  // namespace
}  // namespace fsdp::util
