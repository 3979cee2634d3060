// The order in which the engine gathers, computes, reduces, waits, allocates and frees on the streams of a
// device (lib/shard/README.md), from the fake device's log, as lines (support/stream_story.h).
// device_test.cpp tests that there are no races.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/chain_run.h"
#include "support/told_step.h"

namespace fsdp::shard {
namespace {

using ::testing::ElementsAre;
using testing::every_matrix;
using testing::FakeDevice;
using ::testing::IsEmpty;
using testing::Lines;
using testing::story_of_a_step;
using testing::StreamStory;

ShardOptions with_prefetch() { return every_matrix("implicit", "pre"); }

/// The lines of forward or of backward.
struct Halves {
  std::string forward = "\n", backward = "\n";
};

Halves halves_of(const StreamStory& story) {
  Halves halves;
  std::string* half = &halves.forward;
  for (const std::string& line : story.lines()) {
    // The chain's output is that of its last layer, so the root's turn in backward comes with that layer's.
    if (line == "allocate gradients of root") continue;
    *half += line + "\n";
    if (line == "compute: forward layers.2") half = &halves.backward;
  }
  return halves;
}

// The next unit's gather is issued before the compute, which waits for the gather of its own unit alone. The
// gather after next has the memory of a unit that was freed, and waits for the compute that used it.
TEST(StreamOrder, ForwardGathersTheNextUnitBesideTheCompute) {
  EXPECT_EQ(halves_of(story_of_a_step({.options = with_prefetch()})).forward, R"(
allocate root
communication: gather root
compute waits for gather root
allocate layers.0
communication: gather layers.0
compute waits for gather layers.0
allocate layers.1
communication: gather layers.1
compute: forward layers.0
free layers.0
compute waits for gather layers.1
communication waits for forward layers.0
allocate layers.2
communication: gather layers.2
compute: forward layers.1
free layers.1
compute waits for gather layers.2
compute: forward layers.2
)");
}

// A unit's gather precedes the reduction of the unit after it, so that the compute waits for the gather
// alone, and the reduction is beside the next backward. It gives its input back when the next one is issued.
TEST(StreamOrder, BackwardGathersBeforeItReducesAndReducesBesideTheCompute) {
  EXPECT_EQ(halves_of(story_of_a_step({.options = with_prefetch()})).backward, R"(
communication waits for forward layers.2
allocate layers.1
communication: gather layers.1 again
allocate gradients of layers.2
compute: backward layers.2
free layers.2
communication waits for backward layers.2
communication: reduce layers.2
compute waits for gather layers.1 again
allocate layers.0
communication: gather layers.0 again
allocate gradients of layers.1
compute: backward layers.1
free layers.1
compute waits for reduce layers.2
free gradients of layers.2
communication waits for backward layers.1
communication: reduce layers.1
compute waits for gather layers.0 again
allocate gradients of layers.0
compute: backward layers.0
free layers.0
compute waits for reduce layers.1
free gradients of layers.1
communication waits for backward layers.0
communication: reduce layers.0
compute waits for reduce layers.0
free gradients of layers.0
communication: reduce root
compute waits for reduce root
free gradients of root
free root
compute: end of the step
)");
}

TEST(StreamOrder, BackwardPrefetchComesBeforeTheReductionAfterItOrNotAtAll) {
  const auto issued_with = [](const char* prefetch) {
    const StreamStory story =
        story_of_a_step({.options = every_matrix("implicit", prefetch), .marks_in_front = true});
    EXPECT_EQ(story.ordered("reduce layers.2", "backward layers.1"), std::string(prefetch) != "pre");
    return story.lines_with({"communication: reduce layers", "communication: gather layers.1 again",
                             "communication: gather layers.0 again", "compute: backward in front"});
  };
  EXPECT_THAT(issued_with("pre"),
              ElementsAre("communication: gather layers.1 again", "communication: reduce layers.2",
                          "compute: backward in front of layers.2", "communication: gather layers.0 again",
                          "communication: reduce layers.1", "compute: backward in front of layers.1",
                          "communication: reduce layers.0", "compute: backward in front of layers.0"));
  EXPECT_THAT(issued_with("post"),
              ElementsAre("communication: reduce layers.2", "communication: gather layers.1 again",
                          "compute: backward in front of layers.2", "communication: reduce layers.1",
                          "communication: gather layers.0 again", "compute: backward in front of layers.1",
                          "communication: reduce layers.0", "compute: backward in front of layers.0"));
  EXPECT_THAT(issued_with("none"),
              ElementsAre("communication: reduce layers.2", "compute: backward in front of layers.2",
                          "communication: gather layers.1 again", "communication: reduce layers.1",
                          "compute: backward in front of layers.1", "communication: gather layers.0 again",
                          "communication: reduce layers.0", "compute: backward in front of layers.0"));
}

// In the first step the order of units is not known. The host issues each gather when it enters the unit,
// while the device computes the one before: the gather waits for the memory of the unit before that alone.
TEST(StreamOrder, ImplicitPrefetchOfTheFirstForwardIsTheHostsThatRunsAhead) {
  EXPECT_EQ(halves_of(story_of_a_step({.options = with_prefetch(), .orders = {{}}})).forward, R"(
allocate root
communication: gather root
compute waits for gather root
allocate layers.0
communication: gather layers.0
compute waits for gather layers.0
compute: forward layers.0
allocate layers.1
communication: gather layers.1
free layers.0
compute waits for gather layers.1
compute: forward layers.1
communication waits for forward layers.0
allocate layers.2
communication: gather layers.2
free layers.1
compute waits for gather layers.2
compute: forward layers.2
)");
  EXPECT_EQ(FakeDevice::get().report(), "");
}

// The second order agrees with the first up to matrix 1, so that 2 is gathered in vain; from then on nothing
// is.
TEST(StreamOrder, ImplicitPrefetchFollowsAForwardInAnotherOrder) {
  const StreamStory story = story_of_a_step({.options = every_matrix("implicit", "none"),
                                             .layers = 6,
                                             .orders = {{0, 1, 2, 3, 4, 5}, {0, 1, 4, 3, 5}}});
  const Lines gathers = story.lines_with({"communication: gather layers"});
  EXPECT_THAT(Lines(gathers.begin(), gathers.begin() + 6),
              ElementsAre("communication: gather layers.0", "communication: gather layers.1",
                          "communication: gather layers.2", "communication: gather layers.4",
                          "communication: gather layers.3", "communication: gather layers.5"));
  EXPECT_EQ(story.most_allocated(), 2);
  EXPECT_FALSE(story.ordered("forward layers.4", "gather layers.3"));
  EXPECT_FALSE(story.ordered("forward layers.3", "gather layers.5"));
  EXPECT_TRUE(story.ordered("forward layers.4", "gather layers.5")) << "into its memory";
  EXPECT_EQ(story.host_waits(), 0);
  EXPECT_EQ(FakeDevice::get().report(), "");
}

TEST(StreamOrder, ExplicitPrefetchOfTheFirstForwardWaitsForTheComputeBefore) {
  const StreamStory story = story_of_a_step({.options = every_matrix("explicit", "pre"), .orders = {{}}});
  EXPECT_TRUE(story.ordered("forward layers.0", "gather layers.1"));
  EXPECT_TRUE(story.ordered("forward layers.1", "gather layers.2"));
}

TEST(StreamOrder, WithoutForwardPrefetchEachGatherWaitsForTheComputeBeforeIt) {
  const StreamStory story = story_of_a_step({.options = every_matrix("none", "none")});
  EXPECT_EQ(story.most_allocated(), 1);
  for (const char* unit : {"0", "1"}) {
    const std::string next = std::to_string(*unit - '0' + 1);
    EXPECT_TRUE(story.ordered(std::string("forward layers.") + unit, "gather layers." + next));
  }
}

// The limit is in the order of issue, not in waits of the host: at most one unit is gathered ahead, into the
// memory of the unit before, so that its gather waits for that unit's compute.
TEST(RateLimiter, HoldsTwoUnitsAndWaitsForTheComputeOfTheOneBefore) {
  const StreamStory story = story_of_a_step({.options = with_prefetch(), .layers = 6});
  EXPECT_EQ(story.most_allocated(), 2);
  EXPECT_EQ(story.host_waits(), 0);
  for (int unit = 2; unit < 6; ++unit) {
    const std::string gather = concat("gather layers.", unit);
    EXPECT_TRUE(story.ordered(concat("forward layers.", unit - 2), gather)) << gather;
    EXPECT_FALSE(story.ordered(concat("forward layers.", unit - 1), gather)) << gather;
  }
}

TEST(RateLimiter, OffLetsAllGathersGoBeforeTheFirstCompute) {
  ShardOptions options = with_prefetch();
  options.limit_all_gathers = false;
  const StreamStory story = story_of_a_step({.options = options, .layers = 6});
  EXPECT_EQ(story.most_allocated(), 6);
  for (int unit = 1; unit < 6; ++unit) {
    EXPECT_FALSE(story.ordered("forward layers.0", concat("gather layers.", unit))) << unit;
  }
}

TEST(StreamOrder, TheHostWaitsForNothing) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    ShardOptions options = with_prefetch();
    options.strategy = strategy;
    EXPECT_EQ(story_of_a_step({.options = options}).host_waits(), 0) << strategy;
  }
}

// Two communication buffers and the copies out of them are the communication stream's own; the compute stream
// gives them back when it has waited.
TEST(StreamOrder, ACommunicationBufferIsFreeWhenTheComputeHasWaitedForItsCopy) {
  ShardOptions options = with_prefetch();
  options.layout = "per_parameter";
  const StreamStory story = story_of_a_step({.options = options});
  EXPECT_THAT(story.lines_with({"layers.1"}),
              ::testing::IsSupersetOf({"allocate communication of layers.1", "communication: gather layers.1",
                                       "allocate layers.1", "compute waits for gather layers.1",
                                       "free communication of layers.1", "compute: forward layers.1"}));
  const Lines lines = story.lines_with({"layers.1"});
  EXPECT_THAT(Lines(lines.begin(), lines.begin() + 6),
              ElementsAre("allocate communication of layers.1", "communication: gather layers.1",
                          "allocate layers.1", "compute waits for gather layers.1",
                          "free communication of layers.1", "compute: forward layers.1"));
}

// ---- offload

// By what comes before what; which stream copies is not said.
TEST(OffloadOrder, ShardsAreOnTheDeviceBeforeTheyAreGathered) {
  ShardOptions options = with_prefetch();
  options.cpu_offload = true;
  const StreamStory story = story_of_a_step({.options = options});
  for (int unit = 0; unit < 3; ++unit) {
    const std::string name = concat("layers.", unit);
    EXPECT_TRUE(story.ordered("copy in " + name, "gather " + name)) << name;
    EXPECT_TRUE(story.ordered("gather " + name, "forward " + name)) << name;
    if (unit == 2) continue;  // it stays from forward to backward
    EXPECT_TRUE(story.ordered("copy in " + name + " again", "gather " + name + " again")) << name;
  }
  EXPECT_FALSE(story.ordered("forward layers.0", "copy in layers.1")) << "the copy waits for the compute";
  EXPECT_EQ(story.host_waits(), 0);
  EXPECT_THAT(story.lines_with({"copy out"}), IsEmpty());
}

TEST(OffloadOrder, GradientsGoToTheHostWhenTheyAreReducedAndTheHostWaitsForThem) {
  ShardOptions options = with_prefetch();
  options.cpu_offload = options.move_grads_to_cpu = true;
  const StreamStory story = story_of_a_step({.options = options});
  for (const char* unit : {"layers.2", "layers.1", "layers.0", "root"}) {
    EXPECT_TRUE(story.ordered(std::string("reduce ") + unit, std::string("copy out ") + unit)) << unit;
    EXPECT_TRUE(story.ordered(std::string("copy out ") + unit, "end of the step")) << unit;
  }
  // The thread that processes gradients waits for each, the launching thread only at the end.
  EXPECT_GE(story.host_waits(), 4);
}

// ---- hybrid

TEST(HybridOrder, ReducesInTheShardGroupAndThenAmongTheReplicasOnAStreamOfTheirs) {
  ShardOptions options = with_prefetch();
  options.strategy = "hybrid_shard";
  const StreamStory story =
      story_of_a_step({.options = options, .world_size = 4, .mesh = {.dcn = 2, .data = 2}});
  EXPECT_THAT(story.lines_with({": reduce", ": all-reduce", "replicas waits for reduce"}),
              ElementsAre("communication: reduce layers.2", "replicas waits for reduce layers.2",
                          "replicas: all-reduce layers.2",  //
                          "communication: reduce layers.1", "replicas waits for reduce layers.1",
                          "replicas: all-reduce layers.1",  //
                          "communication: reduce layers.0", "replicas waits for reduce layers.0",
                          "replicas: all-reduce layers.0",  //
                          "communication: reduce root", "replicas waits for reduce root",
                          "replicas: all-reduce root"));
  // Beside all that comes later in the shard group and to the end of backward.
  for (const char* later : {"gather layers.0 again", "reduce layers.1", "backward layers.0", "reduce root"}) {
    EXPECT_FALSE(story.ordered("all-reduce layers.2", later)) << later;
  }
  for (const char* unit : {"layers.2", "layers.1", "layers.0", "root"}) {
    EXPECT_TRUE(story.ordered(std::string("all-reduce ") + unit, "end of the step")) << unit;
  }
  EXPECT_EQ(story.host_waits(), 0);
}

// The first "gather" and the second "reduce" of a unit are those between slices.
TEST(HybridOrder, GathersBetweenSlicesAtOnceAndReducesThereOnAStreamOfTheirs) {
  ShardOptions options = with_prefetch();
  options.strategy = "hybrid_shard";
  options.hybrid_optimizer = "global";
  const StreamStory story =
      story_of_a_step({.options = options, .world_size = 4, .mesh = {.dcn = 2, .data = 2}});
  for (const std::string unit : {"root", "layers.0", "layers.1", "layers.2"}) {
    EXPECT_TRUE(story.ordered("gather " + unit, "gather " + unit + " again")) << unit;
    EXPECT_TRUE(story.ordered("reduce " + unit, "reduce " + unit + " again")) << unit;
    EXPECT_TRUE(story.ordered("reduce " + unit + " again", "end of the step")) << unit;
  }
  for (const char* earlier : {"gather root again", "gather layers.0 again", "forward layers.0"}) {
    EXPECT_FALSE(story.ordered("gather layers.2", earlier)) << earlier;
  }
  EXPECT_FALSE(story.ordered("reduce layers.2 again", "reduce layers.1"));
  EXPECT_TRUE(story.ordered("reduce layers.2 again", "reduce layers.0")) << "at most two are under way";
  EXPECT_EQ(story.host_waits(), 0);
}

TEST(HybridOrder, ReplicatedUnitsOfNoShardAreAllReducedAlone) {
  ShardOptions options = with_prefetch();
  options.strategy = "no_shard";
  const StreamStory story = story_of_a_step({.options = options});
  EXPECT_THAT(story.lines_with({"gather", ": reduce"}), IsEmpty());
  EXPECT_THAT(
      story.lines_with({": all-reduce"}),
      ElementsAre(::testing::EndsWith("all-reduce layers.2"), ::testing::EndsWith("all-reduce layers.1"),
                  ::testing::EndsWith("all-reduce layers.0"), ::testing::EndsWith("all-reduce root")));
  EXPECT_TRUE(story.ordered("backward layers.2", "all-reduce layers.2"));
  EXPECT_FALSE(story.ordered("all-reduce layers.2", "backward layers.1"));
}

}  // namespace
}  // namespace fsdp::shard
