// Checkpoints of runs of any shape, loaded by runs of any other.

#include <gtest/gtest.h>

#include "run/train/checkpointer.h"
#include "support/checkpoint_contents.h"
#include "support/checkpointer_fixture.h"

namespace fsdp::train {
namespace {

using testing::expect_equal_checkpoints;
namespace fs = std::filesystem;

struct Way {
  const char *strategy, *kind;
  int64_t min_num_params;
  bool asynchronous = false;
  const char* layout = "flat";
};

/// Saved one way and loaded another, for every pair of world sizes.
class EveryPairOfRuns : public CheckpointerTest,
                        public ::testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(EveryPairOfRuns, HoldsTheSameBitsWhereverItIsLoaded) {
  constexpr Way kWays[] = {{"full_shard", "sharded", 1176},
                           {"no_shard", "full", 1176},
                           {"full_shard", "sharded", 100'000, true},
                           {"shard_grad_op", "full", 1},
                           {"full_shard", "sharded", 1176, false, "per_parameter"},
                           {"no_shard", "sharded", 1, true},
                           {"shard_grad_op", "full", 1, false, "per_parameter"}};
  auto [saved_at, loaded_at] = GetParam();
  auto config_of = [&](const Way& way, const std::string& name) {
    config::Config config = config_;
    config.run.output_dir = folder_ / name;
    config.fsdp.strategy = way.strategy;
    config.fsdp.layout = way.layout;
    config.fsdp.min_num_params = way.min_num_params;
    config.checkpoint.kind = way.kind;
    config.checkpoint.asynchronous = way.asynchronous;
    config.data.micro_batch_size = 12 / saved_at;
    config.model.tie_word_embeddings = saved_at % 2 == 0;
    return config;
  };
  // Over all pairs every way is followed by two others.
  for (size_t shift : {1, 2}) {
    size_t i = static_cast<size_t>(saved_at * 4 + loaded_at + static_cast<int>(shift)) % std::size(kWays);
    config::Config before = config_of(kWays[i], "before" + std::to_string(i));
    config::Config after = config_of(kWays[(i + shift) % std::size(kWays)], "after" + std::to_string(i));
    // Its state has numbers for elements, for rows and for columns.
    if (shift == 1) before.optimizer.name = after.optimizer.name = "adafactor";
    if (shift == 1) before.optimizer.beta1 = after.optimizer.beta1 = 0.9;
    fs::path saved = save_run(saved_at, before);
    after.checkpoint.resume = saved;
    on_ranks(loaded_at, after, [](Rank& rank) {
      EXPECT_EQ(rank.position.step, 2);
      rank.checkpointer.save(rank.position);
      rank.checkpointer.finish();
    });
    expect_equal_checkpoints(saved, folder_ / ("after" + std::to_string(i)) / "step-00000002");
  }
}

INSTANTIATE_TEST_SUITE_P(SaveLoad, EveryPairOfRuns,
                         ::testing::Combine(::testing::Range(1, 5), ::testing::Range(1, 5)));

struct MeshedRun {
  const char* strategy;
  comm::MeshOptions mesh;
  const char* kind = "sharded";
  bool asynchronous = false;
  const char* layout = "flat";
  const char* hybrid_optimizer = "replicated";

  int world_size() const { return static_cast<int>(mesh.dcn * mesh.data * mesh.context * mesh.model); }
};

class CheckpointsOfMeshes : public CheckpointerTest {
 protected:
  config::Config config_of(const MeshedRun& run, const std::string& name) const {
    config::Config config = config_;
    config.run.output_dir = folder_ / name;
    config.fsdp.strategy = run.strategy;
    config.fsdp.replicated_parameters = {};
    if (std::string(run.strategy) != "no_shard") config.fsdp.replicated_parameters = {"*norm*"};
    config.fsdp.hybrid_optimizer = run.hybrid_optimizer;
    config.fsdp.layout = run.layout;
    config.mesh = run.mesh;
    config.checkpoint.kind = run.kind;
    config.checkpoint.asynchronous = run.asynchronous;
    config.data.micro_batch_size = 12 / (run.mesh.dcn * run.mesh.data);
    config.optimizer.name = "adafactor";
    config.optimizer.beta1 = 0.9;
    return config;
  }
  /// What each run saves is what a run saves that has loaded it: each of three others, so that every run
  /// loads from three too.
  void expect_the_same_bits(const std::vector<MeshedRun>& runs) {
    for (size_t i = 0; i < runs.size(); ++i) {
      fs::path saved = save_run(runs[i].world_size(), config_of(runs[i], "from" + std::to_string(i)));
      for (const size_t shift : {1, 3, 5}) {
        const size_t j = (i + shift) % runs.size();
        config::Config after = config_of(runs[j], concat("from", i, "to", j));
        after.checkpoint.resume = saved;
        on_ranks(runs[j].world_size(), after, [](Rank& rank) {
          EXPECT_EQ(rank.position.step, 2);
          rank.checkpointer.save(rank.position);
          rank.checkpointer.finish();
        });
        expect_equal_checkpoints(saved, fs::path(after.run.output_dir) / "step-00000002");
      }
    }
  }
};

TEST_F(CheckpointsOfMeshes, HoldTheSameBitsForOtherMeshes) {
  expect_the_same_bits(
      {{"hybrid_shard", {.dcn = 2, .data = 2}},
       {"hybrid_shard_zero2", {.dcn = 2, .data = 3}, "full"},
       {"hybrid_shard", {.dcn = 3, .data = 2}, "sharded", true},
       {"hybrid_shard", {.dcn = 1, .data = 4}},
       {"hybrid_shard", {.dcn = 2, .data = 2}, "sharded", false, "per_parameter"},
       {"hybrid_shard", {.dcn = 3, .data = 2}, "full", false, "per_parameter"},
       {"hybrid_shard", {.dcn = 4, .data = 1}, "sharded", true},
       {"hybrid_shard", {.dcn = 2, .data = 2}, "sharded", false, "flat", "global"},
       {"hybrid_shard_zero2", {.dcn = 3, .data = 1}, "full", false, "per_parameter", "global"},
       {"full_shard", {.dcn = 1, .data = 3}},
       {"full_shard", {.dcn = 2, .data = 2}},
       {"full_shard", {.dcn = 1, .data = 2, .context = 2}},
       {"hybrid_shard", {.dcn = 2, .data = 1, .context = 2}, "full"},
       {"no_shard", {.dcn = 1, .data = 2}}});
}

TEST_F(CheckpointsOfMeshes, HoldTheSameBitsWhereLayersAreCut) {
  expect_the_same_bits(
      {{"full_shard", {.dcn = 1, .data = 4}},
       {"full_shard", {.dcn = 1, .data = 1, .context = 1, .model = 2}},
       {"hybrid_shard", {.dcn = 2, .data = 1, .context = 2, .model = 2}},
       {"full_shard", {.dcn = 1, .data = 3, .context = 1, .model = 2}, "full"},
       {"full_shard", {.dcn = 1, .data = 2, .context = 1, .model = 2}, "sharded", true, "per_parameter"},
       {"no_shard", {.dcn = 1, .data = 2, .context = 1, .model = 2}},
       {"hybrid_shard", {.dcn = 2, .data = 2, .context = 1, .model = 2}, "sharded", false, "flat", "global"},
       {"full_shard", {.dcn = 1, .data = 1}}});
}

}  // namespace
}  // namespace fsdp::train
