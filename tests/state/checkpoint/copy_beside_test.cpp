#include "state/checkpoint/copy_beside.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "state/checkpoint/state_slices.h"
#include "support/checkpoint_fixtures.h"
#include "support/run_program.h"

namespace fsdp::checkpoint {
namespace {

using testing::same_bits;

/// Tensors of many pieces, of a part of one and of none.
std::vector<CopyBeside::Copy> some_copies() {
  std::vector<CopyBeside::Copy> copies;
  for (const int64_t numel : {3'000'001, 5, 0, 70'000}) {
    const at::Tensor from = at::randn({numel});
    copies.push_back({from, at::zeros_like(from)});
  }
  return copies;
}

void expect_copied(const std::vector<CopyBeside::Copy>& copies) {
  for (const CopyBeside::Copy& copy : copies) EXPECT_TRUE(same_bits(copy.from, copy.to));
}

TEST(CopyBeside, CopiesWhileItsCallerDoesSomethingElse) {
  const auto copies = some_copies();
  CopyBeside beside;
  EXPECT_TRUE(beside.is_done());
  beside.begin(copies);
  EXPECT_TRUE(testing::eventually([&] { return beside.is_done(); }, 60));
  expect_copied(copies);
  beside.finish();
}

/// Keeps the thread that copies from its work.
class HeldThread {
 public:
  explicit HeldThread(CopyBeside& beside) {
    beside.thread().run([end = end_.get_future().share()] { end.wait(); });
  }
  ~HeldThread() { end_.set_value(); }

 private:
  std::promise<void> end_;
};

TEST(CopyBeside, FinishMakesTheCopiesThatTheThreadHasNotMade) {
  const auto copies = some_copies();
  CopyBeside beside;
  const HeldThread held(beside);
  beside.begin(copies);
  EXPECT_FALSE(beside.is_done());
  beside.finish();
  EXPECT_TRUE(beside.is_done());
  expect_copied(copies);
}

TEST(CopyBeside, ReadsNothingAfterFinish) {
  const auto copies = some_copies();
  std::vector<at::Tensor> before;
  for (const auto& copy : copies) before.push_back(copy.from.clone());
  CopyBeside beside;
  {
    const HeldThread held(beside);
    beside.begin(copies);
    beside.finish();
    for (const auto& copy : copies) at::Tensor(copy.from).zero_();
  }
  beside.thread().run([] {}).wait();
  for (size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(same_bits(copies[i].to, before[i]));
}

TEST(CopyBeside, BeginsAgainWithOtherTensors) {
  CopyBeside beside;
  for (int i = 0; i < 20; ++i) {
    const auto copies = some_copies();
    beside.begin(copies);
    if (i % 2 == 0) beside.finish();
    if (i % 2 == 1) beside.begin({});
    expect_copied(copies);
  }
}

TEST(CopyBeside, ThatIsGivenUpLeavesTheRest) {
  const auto copies = some_copies();
  std::promise<void> end;
  std::future<void> ending;
  {
    CopyBeside beside;
    beside.begin(copies, [until = end.get_future().share()] { until.wait(); });
    ending = std::async(std::launch::async, [&end] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      end.set_value();
    });
  }
  ending.wait();
  EXPECT_FALSE(same_bits(copies.front().from, copies.front().to));
}

TEST(HostCopies, MadeBesideHaveTheStateOfTheirBeginning) {
  testing::NamedTensors tensors = {{"model/large", at::randn({16 << 20})}, {"model/buffer", at::ones({100})}};
  const at::Tensor large = tensors[0].second.clone();
  HostCopies copies;
  const auto slices = testing::slices_of(tensors, 0, 1);
  copies.prepare(slices, /*beside=*/true);
  const std::vector<shard::TensorSlice> copied = copies.begin(slices, {"model/buffer"});
  EXPECT_TRUE(same_bits(copied[1].data, at::ones({100}))) << "what a forward may change is copied at once";
  tensors[1].second.zero_();
  copies.finish();
  tensors[0].second.zero_();
  EXPECT_TRUE(same_bits(copied[0].data, large));
  EXPECT_TRUE(same_bits(copied[1].data, at::ones({100})));
}

}  // namespace
}  // namespace fsdp::checkpoint
