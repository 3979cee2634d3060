#include "base/tensor/parallel.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
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

int64_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST_F(ParallelFor, AndProductsOfAThreadOfItsOwnHaveNoFurtherThreads) {
  const at::Tensor x = at::ones({512, 512});
  on_one_thread([&] {
    const int64_t threads = threads_of_process();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor factor = x.to(type);
      at::mm(factor, factor);
    }
    int parts = 0;
    parallel_for(0, 100, 1, [&](int64_t, int64_t) { ++parts; });
    EXPECT_EQ(parts, 1);
    EXPECT_EQ(threads_of_process(), threads);
  });
  EXPECT_EQ(at::get_num_threads(), 4);
  EXPECT_THROW(on_one_thread([] { throw std::runtime_error("of the body"); }), std::runtime_error);
}

}  // namespace
}  // namespace fsdp::util
