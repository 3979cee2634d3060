#include "train/compute_recorder.h"

#include <gtest/gtest.h>

#include "comm/thread_communicator.h"
#include "nn/recompute.h"
#include "shard/fully_shard.h"
#include "support/sharded_run.h"

namespace fsdp::train {
namespace {

using Kind = ComputeSpan::Kind;

/// The spans of a second step on two ranks, as rank 0 saw them.
std::vector<ComputeSpan> spans_of_a_step(const nn::CheckpointingOptions& checkpointing = {}) {
  std::vector<ComputeSpan> spans;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    auto model = testing::make_initialized(testing::tiny_options());
    shard::ShardOptions options;
    options.min_num_params = 1176;
    auto engine = shard::fully_shard(*model, options, testing::borrowed(communicator));
    nn::apply_checkpointing(*model, checkpointing);
    ComputeRecorder recorder(*model, *engine, std::make_shared<comm::Trace>());
    for (int step = 0; step < 2; ++step) {
      recorder.clear();
      testing::loss_of(*model, testing::token_rows(0, 2, 9, 17)).backward();
    }
    if (communicator.rank() == 0) spans = recorder.spans();
  });
  return spans;
}

std::vector<std::string> units_of(const std::vector<ComputeSpan>& spans, Kind kind) {
  std::vector<std::string> units;
  for (const auto& span : spans) {
    if (span.kind == kind) units.push_back(span.unit);
  }
  return units;
}

using Names = std::vector<std::string>;

TEST(ComputeRecorder, SeesForwardInOrderAndBackwardInReverse) {
  auto spans = spans_of_a_step();
  EXPECT_EQ(units_of(spans, Kind::kForward),
            (Names{"root", "model.layers.0", "model.layers.1", "model.layers.2"}));
  EXPECT_EQ(units_of(spans, Kind::kBackward),
            (Names{"root", "model.layers.2", "model.layers.1", "model.layers.0"}));
  EXPECT_TRUE(units_of(spans, Kind::kRecomputation).empty());
}

TEST(ComputeRecorder, UnitsComputeOneAfterAnotherInsideTheRoot) {
  auto spans = spans_of_a_step();
  ASSERT_EQ(spans.size(), 8u);
  const ComputeSpan& root = spans.front();
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_GE(spans[i].begin_us, i == 1 ? root.begin_us : *spans[i - 1].end_us);
    EXPECT_LE(*spans[i].end_us, *root.end_us);
  }
  EXPECT_FALSE(spans[4].end_us.has_value()) << "token ids have no gradient, so nothing ends the root";
  for (size_t i = 6; i < 8; ++i) EXPECT_GE(spans[i].begin_us, *spans[i - 1].end_us);
}

TEST(ComputeRecorder, TellsRecomputationFromForward) {
  auto spans = spans_of_a_step({.mode = "full"});
  EXPECT_EQ(units_of(spans, Kind::kForward).size(), 4u);
  Names backwards = {"model.layers.2", "model.layers.1", "model.layers.0"};
  EXPECT_EQ(units_of(spans, Kind::kRecomputation), backwards);
  backwards.insert(backwards.begin(), "root");
  EXPECT_EQ(units_of(spans, Kind::kBackward), backwards);
}

}  // namespace
}  // namespace fsdp::train
