#include "util/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fsdp::util {
namespace {

class ParallelFor : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(4); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_F(ParallelFor, RunsPartsOnSeveralThreads) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<int> seen(1003);
  parallel_for(0, 1003, 10, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_EQ(seen, std::vector<int>(1003, 1));
}

TEST_F(ParallelFor, KeepsSmallRangesAndThoseWithinAPartInOnePart) {
  int parts = 0;
  parallel_for(5, 15, 10, [&](int64_t begin, int64_t end) {
    ++parts;
    EXPECT_EQ(begin, 5);
    EXPECT_EQ(end, 15);
  });
  parallel_for(3, 3, 1, [&](int64_t, int64_t) { ++parts; });
  EXPECT_EQ(parts, 1);

  std::vector<int> inner(4);
  parallel_for(0, 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      parallel_for(0, 1000, 1, [&](int64_t, int64_t) { ++inner[static_cast<size_t>(i)]; });
    }
  });
  EXPECT_EQ(inner, std::vector<int>(4, 1));
}

TEST_F(ParallelFor, ThrowsWhatAPartThrew) {
  EXPECT_THROW(parallel_for(0, 100, 1,
                            [](int64_t begin, int64_t) {
                              if (begin > 0) throw std::runtime_error("of a part");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace fsdp::util
