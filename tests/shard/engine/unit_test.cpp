#include "shard/engine/unit.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_communicator.h"
#include "support/counting_communicator.h"
#include "support/readable.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

ProcessGroups groups_of(comm::Communicator& communicator) {
  std::shared_ptr<comm::Communicator> world(&communicator, [](comm::Communicator*) {});
  return {.world = world, .shard = world, .reduce_scatter = world, .replicate = nullptr};
}

UnitPlan unit_plan(testing::MatrixStage& stage, const UnitOptions& options) {
  return {"stage", &stage, {{"weight", stage.weight()}}, options};
}

/// A unit of one matrix and the pool of its buffers.
struct TestUnit {
  TestUnit(testing::MatrixStage& stage, comm::Communicator& communicator, const UnitOptions& options = {})
      : pool(std::make_shared<BufferPool>(testing::borrowed(communicator))),
        unit(unit_plan(stage, options), groups_of(communicator), {pool}) {}
  int64_t live_bytes() const { return pool->account().live(); }

  std::shared_ptr<BufferPool> pool;
  Unit unit;
};

TEST(Unit, GathersTheParametersOfAllRanksAndFreesThem) {
  comm::run_ranks_as_threads(3, [](comm::Communicator& communicator) {
    testing::MatrixStage stage(3, 3);
    at::Tensor before = stage.weight().detach().clone();
    TestUnit test(stage, communicator);
    Unit& unit = test.unit;
    EXPECT_EQ(unit.state(), Unit::State::kSharded);
    unit.start_gather("forward");
    EXPECT_EQ(unit.state(), Unit::State::kGathering);
    unit.finish_gather("forward");
    EXPECT_EQ(unit.state(), Unit::State::kUnsharded);
    EXPECT_TRUE(at::equal(stage.weight(), before));
    unit.reshard();
    EXPECT_EQ(unit.state(), Unit::State::kSharded);
    EXPECT_EQ(test.live_bytes(), 0);
  });
}

TEST(Unit, GathersOnceHoweverOftenItIsAsked) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    testing::CountingCommunicator communicator(inner);
    testing::MatrixStage stage(2, 2);
    TestUnit test(stage, communicator);
    Unit& unit = test.unit;
    unit.start_gather("forward");
    unit.start_gather("forward");
    unit.finish_gather("forward");
    unit.finish_gather("forward");
    EXPECT_EQ(communicator.count("all_gather"), 1);
    unit.reshard();
  });
}

TEST(Unit, ReducesToTheMeanAndAddsMicroBatches) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::MatrixStage stage(2, 2);
    TestUnit test(stage, communicator);
    Unit& unit = test.unit;
    for (int micro = 0; micro < 2; ++micro) {
      unit.finish_gather("forward");
      unit.attach_gradients();
      (stage.weight() * (communicator.rank() == 0 ? 1.0 : 3.0)).sum().backward();
      unit.reshard();
      unit.reduction().start(Reduction::Reach::kAll);
      EXPECT_FALSE(testing::is_readable(stage.weight().grad()));
      unit.reduction().finish();
    }
    EXPECT_TRUE(at::equal(unit.storage().shard_gradient(), at::full({2}, 4.0f)));
    EXPECT_EQ(test.live_bytes(), 0);
  });
}

TEST(Unit, ResetDropsAGatherUnderWayAndUnreducedGradients) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::MatrixStage stage(2, 2);
    TestUnit test(stage, communicator);
    Unit& unit = test.unit;
    unit.start_gather("forward");
    unit.attach_gradients();
    unit.reset();
    EXPECT_EQ(unit.state(), Unit::State::kSharded);
    EXPECT_EQ(test.live_bytes(), 0);
    EXPECT_FALSE(stage.weight().grad().defined());
    unit.finish_gather("forward");
    EXPECT_EQ(unit.state(), Unit::State::kUnsharded);
    unit.reshard();
  });
}

}  // namespace
}  // namespace fsdp::shard
