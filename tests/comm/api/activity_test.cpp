#include "comm/api/activity.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/api/communicator.h"
#include "support/forwarding_communicator.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;

/// A communicator whose all-reduce looks at the activity, and fails when told to.
class Looking final : public testing::ForwardingCommunicator {
 public:
  Looking(Communicator& inner, const Activity& activity)
      : ForwardingCommunicator(inner), activity_(activity) {}
  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    seen = activity_.snapshot();
    if (fails) fail(ErrorKind::kPeerLost, "gone");
    return inner().all_reduce(tensor, op, site);
  }
  Activity::Snapshot seen;
  bool fails = false;

 private:
  const Activity& activity_;
};

class ActivityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto looking = std::make_shared<Looking>(single_, *activity_);
    looking_ = looking.get();
    communicator_ = make_activity_communicator(std::move(looking), activity_);
  }
  void all_reduce() {
    at::Tensor one = at::ones({1});
    communicator_->all_reduce(one, ReduceOp::kSum, {.unit = "model.layers.3", .pass = "backward"})->wait();
  }

  std::shared_ptr<Activity> activity_ = std::make_shared<Activity>();
  SingleCommunicator single_;
  Looking* looking_ = nullptr;
  std::shared_ptr<Communicator> communicator_;
};

TEST_F(ActivityTest, KnowsTheCollectiveUnderWayAndTheOneBefore) {
  EXPECT_THAT(describe(activity_->snapshot()), HasSubstr("no collective so far"));
  activity_->begin_step(7);
  all_reduce();
  EXPECT_EQ(looking_->seen.step, 7);
  EXPECT_EQ(looking_->seen.collective, "all_reduce of model.layers.3 (backward)");
  EXPECT_EQ(looking_->seen.collectives, 0);
  EXPECT_THAT(describe(looking_->seen), HasSubstr("in all_reduce of model.layers.3 (backward), step 7, for"));

  Activity::Snapshot after = activity_->snapshot();
  EXPECT_EQ(after.collective, "");
  EXPECT_EQ(after.last, "all_reduce of model.layers.3 (backward)");
  EXPECT_EQ(after.collectives, 1);
  EXPECT_THAT(describe(after), HasSubstr("after all_reduce of model.layers.3 (backward)"));
}

TEST_F(ActivityTest, AFailedCollectiveStaysTheOneUnderWay) {
  looking_->fails = true;
  EXPECT_THROW(all_reduce(), util::Error);
  EXPECT_EQ(activity_->snapshot().collective, "all_reduce of model.layers.3 (backward)");
}

TEST(Activity, KnowsTheCollectivesOfSeveralGroupsTheOldestFirst) {
  Activity activity;
  int64_t gather = activity.begin_collective("all_gather", {.unit = "a", .pass = "backward"});
  int64_t reduce = activity.begin_collective("all_reduce", {.unit = "b", .pass = "backward"});
  EXPECT_EQ(activity.snapshot().collective, "all_gather of a (backward) and all_reduce of b (backward)");
  activity.end_collective(gather);
  EXPECT_EQ(activity.snapshot().collective, "all_reduce of b (backward)");
  EXPECT_EQ(activity.snapshot().last, "all_gather of a (backward)");
  activity.end_collective(reduce);
  EXPECT_EQ(activity.snapshot().collective, "");
  EXPECT_EQ(activity.snapshot().collectives, 2);
}

TEST(Activity, KnowsForHowLongTheOldestCollectiveAndTheStepHaveBeenUnderWay) {
  constexpr double kPause = 0.02;
  const auto pause = [&] { std::this_thread::sleep_for(std::chrono::duration<double>(kPause)); };
  Activity activity;
  activity.begin_step(1);
  pause();
  const int64_t first = activity.begin_collective("all_gather", {.unit = "a", .pass = "forward"});
  pause();
  const int64_t second = activity.begin_collective("all_gather", {.unit = "b", .pass = "forward"});
  pause();
  const Activity::Snapshot both = activity.snapshot();
  EXPECT_GE(both.seconds, 2 * kPause);
  EXPECT_GE(both.step_seconds, both.seconds + kPause);
  activity.end_collective(first);
  const Activity::Snapshot one = activity.snapshot();
  EXPECT_GE(one.seconds, kPause);
  EXPECT_GE(one.step_seconds, one.seconds + 2 * kPause);
  activity.end_collective(second);
  pause();
  EXPECT_GE(activity.snapshot().seconds, kPause) << "since the last one ended";
}

}  // namespace
}  // namespace fsdp::comm
