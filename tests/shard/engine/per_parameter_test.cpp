// Features of the per_parameter layout only; the rest of the suite runs on both layouts
// (tests/support/layout_under_test.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/error.h"
#include "shard/engine/fully_shard.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using ::testing::HasSubstr;
using testing::RunPlan;

ShardOptions per_parameter() {
  ShardOptions options;
  options.layout = "per_parameter";
  options.min_num_params = 500;
  return options;
}

TEST(PerParameter, TrainsAsTheUnshardedModelDoes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (const char* dimension : {"largest", "first"}) {
      for (bool shard_1d : {false, true}) {
        RunPlan plan;
        plan.model.architecture = architecture;
        plan.shard = per_parameter();
        plan.shard.shard_dimension = dimension;
        plan.shard.shard_1d_parameters = shard_1d;
        plan.max_norm = 1.0;
        auto expected = testing::train_unsharded(plan);
        for (int world : {1, 2, 3, 4}) {
          testing::expect_close_runs(
              testing::train_sharded(world, plan), expected,
              concat(architecture, ", ", dimension, ", 1-D ", shard_1d, ", world ", world));
        }
      }
    }
  }
}

// A matrix of 3 x 5 over two ranks: half of its elements, two of its rows, or three of its columns are the
// first rank's.
TEST(Layout, CutsTheUnitAsOneOrEachParameterOnTheDimensionThatTheOptionSays) {
  struct Case {
    const char *layout, *dimension;
    int64_t numel, rows;
  };
  for (const Case& each : {Case{"flat", "largest", 8, 1}, Case{"per_parameter", "first", 10, 1},
                           Case{"per_parameter", "largest", 9, 3}}) {
    SCOPED_TRACE(concat(each.layout, ", ", each.dimension));
    comm::run_ranks_as_threads(2, [&each](comm::Communicator& communicator) {
      testing::MatrixStage stage(5, 3);
      ShardOptions options;
      options.layout = each.layout;
      options.shard_dimension = each.dimension;
      const auto engine = fully_shard(stage, options, testing::borrowed(communicator));
      ASSERT_EQ(engine->segments().size(), 1u);
      const Segment segment = engine->segments().front();
      EXPECT_EQ(segment.numel(), communicator.rank() == 0 ? each.numel : 15 - each.numel);
      EXPECT_EQ(segment.range.rows, each.rows);
    });
  }
}

TEST(PerParameter, EveryElementOfOddShapesIsUpdated) {
  // Vocabulary 4 W + 1, and matrices smaller than the world.
  RunPlan plan;
  plan.model.vocab_size = 17;
  plan.shard = per_parameter();
  plan.shard.shard_1d_parameters = true;
  plan.steps = 1;
  plan.global_rows = 48;  // every token is seen, so every row of the embedding has a gradient
  auto before = testing::make_model(plan);
  auto after = testing::train_sharded(4, plan);
  for (const auto& parameter : before->named_parameters()) {
    at::Tensor changed = after.weights.at(parameter.key()).ne(parameter.value());
    at::Tensor rows = changed.view({changed.size(0), -1}).any(1);
    EXPECT_TRUE(rows.all().item<bool>()) << parameter.key();
  }
}

TEST(PerParameter, ParametersOfOneDimensionStayWholeAndAreAllReduced) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    RunPlan plan;
    auto model = testing::make_model(plan);
    auto engine = fully_shard(*model, per_parameter(), testing::borrowed(communicator));
    int64_t whole = 0;
    for (const Segment& segment : engine->segments()) {
      const Unit& unit = *engine->units()[segment.unit];
      EXPECT_EQ(unit.name() == "root.replicated", segment.shape.size() < 2) << segment.name;
      if (segment.shape.size() < 2) ++whole;
    }
    EXPECT_GT(whole, 0);
    engine->reset_counters();
    testing::loss_of(*model, testing::token_rows(communicator.rank() * 2, 2, 9, plan.model.vocab_size))
        .backward();
    EXPECT_EQ(engine->traffic().all_reduces, 1);
    EXPECT_EQ(engine->traffic().reduce_scatters, static_cast<int64_t>(engine->units().size()) - 1);
  });
}

TEST(PerParameter, APolicyOfOnesOwnDecides) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 4);
    ShardOptions options = per_parameter();
    options.min_num_params = 1;
    options.dimension_policy = [](const std::string& name,
                                  const std::vector<int64_t>& shape) -> std::optional<int64_t> {
      if (shape.size() < 2) return std::nullopt;
      return name.find("0") != std::string::npos ? 1 : 0;
    };
    auto engine = fully_shard(chain, options, testing::borrowed(communicator));
    for (const Segment& segment : engine->segments()) {
      if (segment.shape.size() < 2) continue;
      EXPECT_EQ(segment.range.rows, segment.name.find("0") != std::string::npos ? 4 : 1) << segment.name;
    }
  });
}

TEST(PerParameter, RefusesADimensionThatAParameterHasNot) {
  comm::run_ranks_as_threads(1, [](comm::Communicator& communicator) {
    testing::ChainStage chain(1, 4);
    ShardOptions options = per_parameter();
    options.dimension_policy = [](const std::string&, const std::vector<int64_t>&) { return 2; };
    try {
      fully_shard(chain, options, testing::borrowed(communicator));
      FAIL() << "expected an error";
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("which has the shape [4]; found 2"));
    }
  });
}

TEST(PerParameter, TheGatheredBufferIsGoneOnceItIsUnpacked) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 4);
    ShardOptions options = per_parameter();
    options.min_num_params = 1;
    auto engine = fully_shard(chain, options, testing::borrowed(communicator));
    Unit& unit = *engine->units().back();
    engine->reset_counters();
    unit.finish_gather("other");
    EXPECT_EQ(engine->unsharded_memory().live_communication, 0);
    EXPECT_EQ(engine->unsharded_memory().peak_communication, 4 * 4 * 4);
    EXPECT_EQ(engine->unsharded_memory().live_parameters, 4 * 4 * 4);
    unit.reshard();
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
  });
}

TEST(PerParameter, StateOfOneLayoutFitsTheOther) {
  RunPlan plan;
  for (int world : {2, 3}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      auto from = testing::make_model(plan), to = testing::make_model(plan);
      auto flat = per_parameter();
      flat.layout = "flat";
      auto source = fully_shard(*from, per_parameter(), testing::borrowed(communicator));
      auto target = fully_shard(*to, flat, testing::borrowed(communicator));
      for (const auto& unit : target->units()) unit->storage().shard().zero_();
      auto state = full_state_dict(*source);
      load_full_state_dict(*target, state);
      auto loaded = full_state_dict(*target);
      ASSERT_EQ(loaded.size(), state.size());
      std::map<std::string, at::Tensor> by_name;
      for (auto& [name, tensor] : loaded) by_name[name] = tensor;
      for (auto& [name, tensor] : state) EXPECT_TRUE(at::equal(tensor, by_name.at(name))) << name;
    });
  }
}

}  // namespace
}  // namespace fsdp::shard
