#include <ATen/Parallel.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "run/train/arithmetic.h"
#include "support/checkpoint_contents.h"
#include "support/log_lines.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

/// How a run of the same training is shared out.
struct Sharing {
  int ranks = 1;
  int64_t rows = 4;  ///< of a micro-batch
  shard::Strategy strategy = shard::Strategy::kFullShard;
  shard::Layout layout = shard::Layout::kFlat;
  bool offload = false;
  int64_t replicas = 1;

  std::string text() const {
    return concat(ranks, " ranks, ", rows, " rows, ", util::Named(strategy), ", ", util::Named(layout),
                  offload ? ", offload" : "", ", dcn ", replicas);
  }
};

class ReproducibleTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    config_.training.reproducible = config::Reproducible::kWorldSize;
    config_.training.global_batch_size = 24;
    config_.training.gradient_accumulation_steps = 0;
    config_.training.steps = 3;
    config_.training.max_grad_norm = 0.5;
    config_.checkpoint.save_at_end = true;
  }

  config::Config config_of(const Sharing& sharing, const std::string& name) const {
    config::Config config = config_;
    config.run.output_dir = folder_ / name;
    config.data.micro_batch_size = sharing.rows;
    config.fsdp.strategy = sharing.strategy;
    config.fsdp.layout = sharing.layout;
    config.fsdp.cpu_offload = sharing.offload;
    config.mesh.dcn = static_cast<int>(sharing.replicas);
    return config;
  }

  std::filesystem::path checkpoint_of(const Sharing& sharing) {
    const std::string name = concat("run", ++runs_);
    train(sharing.ranks, config_of(sharing, name));
    return folder_ / name / concat("step-0000000", config_.training.steps);
  }

  /// Weights, optimizer state and metrics are those of one rank.
  void expect_same_results(const std::vector<Sharing>& all) {
    const std::filesystem::path first = checkpoint_of({});
    for (const Sharing& sharing : all) {
      SCOPED_TRACE(sharing.text());
      const std::filesystem::path found = checkpoint_of(sharing);
      testing::expect_equal_checkpoints(first, found);
      for (const char* key : {"loss", "grad_norm", "validation_loss"}) {
        EXPECT_EQ(testing::values_of(first.parent_path() / "metrics.jsonl", key),
                  testing::values_of(found.parent_path() / "metrics.jsonl", key))
            << key;
      }
    }
  }

  int runs_ = 0;
};

TEST_F(ReproducibleTest, ResultsDoNotDependOnTheSizeOfMicroBatches) {
  expect_same_results({{.rows = 1}, {.rows = 2}, {.rows = 8}, {.rows = 12}});
}

TEST_F(ReproducibleTest, ResultsDoNotDependOnTheNumberOfRanks) {
  expect_same_results(
      {{.ranks = 2}, {.ranks = 2, .rows = 2}, {.ranks = 4, .rows = 2}, {.ranks = 8, .rows = 1}});
}

TEST_F(ReproducibleTest, ResultsDoNotDependOnThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = checkpoint_of({});
  at::set_num_threads(2);
  testing::expect_equal_checkpoints(one, checkpoint_of({}));
  at::set_num_threads(before);
}

TEST_F(ReproducibleTest, ResultsAreTheSameOnOtherNumbersThanPowersOfTwo) {
  expect_same_results(
      {{.ranks = 3}, {.ranks = 3, .rows = 2}, {.ranks = 6, .rows = 1}, {.ranks = 12, .rows = 1}});
}

TEST_F(ReproducibleTest, ResultsDoNotDependOnReplicas) {
  using enum shard::Strategy;
  expect_same_results({{.ranks = 3, .strategy = kNoShard},
                       {.ranks = 4, .rows = 2, .strategy = kHybridShard, .replicas = 2},
                       {.ranks = 6, .rows = 1, .strategy = kHybridShard, .replicas = 2},
                       {.ranks = 6, .rows = 4, .strategy = kHybridShard, .replicas = 3},
                       {.ranks = 6, .rows = 2, .strategy = kFullShard, .replicas = 2}});
}

/// Of all models that are not refused, on numbers of ranks, with micro-batches, strategies and layouts that
/// are drawn.
TEST_F(ReproducibleTest, ResultsOfDrawnRunsAreTheSame) {
  struct Model {
    std::string architecture;
    bool tied, bf16;
  };
  std::vector<Model> models;
  for (const std::string architecture : {"llama", "gpt2", "qwen3", "olmo2", "smollm3", "phi3"}) {
    for (const bool tied : {false, true}) models.push_back({architecture, tied, false});
    if (sums_by_sample(at::kBFloat16)) models.push_back({architecture, true, true});
  }
  std::mt19937 source(5);
  const auto draw = [&](const auto& values) { return values[source() % values.size()]; };
  for (const Model& model : models) {
    SCOPED_TRACE(concat(model.architecture, model.tied ? ", tied" : "", model.bf16 ? ", bf16" : ""));
    config_.model = testing::family_options(model.architecture);
    config_.model.tie_word_embeddings = model.tied;
    config_.model.hidden_dropout = model.tied ? 0.1 : 0;
    config_.mixed_precision.param_dtype = model.bf16 ? util::FloatType::kBFloat16 : util::FloatType::kFloat32;
    config_.data.document_separator = 3;
    config_.data.documents = model.tied ? data::DocumentTreatment::kMask : data::DocumentTreatment::kJoin;
    config_.activation_checkpointing.mode = model.tied ? nn::RecomputeMode::kFull : nn::RecomputeMode::kNone;
    std::vector<Sharing> drawn;
    while (drawn.size() < 3) {
      Sharing sharing{
          .ranks = draw(std::vector<int>{1, 2, 3, 4, 6, 8}),
          .rows = draw(std::vector<int64_t>{1, 2, 3, 4, 6, 8}),
          .strategy =
              draw(std::vector<shard::Strategy>{shard::Strategy::kFullShard, shard::Strategy::kShardGradOp,
                                                shard::Strategy::kNoShard, shard::Strategy::kHybridShard}),
          .layout = draw(std::vector<shard::Layout>{shard::Layout::kFlat, shard::Layout::kPerParameter}),
          .offload = source() % 2 == 0};
      if (sharing.strategy == shard::Strategy::kHybridShard)
        sharing.replicas = sharing.ranks % 2 == 0 ? 2 : 1;
      if (24 % (sharing.ranks * sharing.rows) == 0) drawn.push_back(sharing);
    }
    expect_same_results(drawn);
  }
}

TEST_F(ReproducibleTest, RunsResumeOnOtherNumbersOfRanks) {
  const auto whole = checkpoint_of({});
  config::Config config = config_of({.ranks = 3}, "resumed");
  config.training.steps = 2;
  config.lr_scheduler.name = "constant";
  train(3, config);
  config = config_of({.ranks = 4, .rows = 2, .strategy = shard::Strategy::kShardGradOp}, "resumed");
  train(4, config);
  testing::expect_equal_checkpoints(whole, folder_ / "resumed" / "step-00000003");
}

TEST_F(ReproducibleTest, SumsOfTargetsThatDoNotAllCountAreTheSame) {
  config_.data.documents = data::DocumentTreatment::kSplit;
  config_.data.document_separator = 3;
  expect_same_results({{.rows = 1}, {.ranks = 3, .rows = 2}, {.ranks = 4, .rows = 1}});
}

TEST_F(ReproducibleTest, BatchesByNumberOfTokensAreSamples) {
  config_.data.documents = data::DocumentTreatment::kSplit;
  config_.data.document_separator = 3;
  config_.data.max_tokens = 16;
  expect_same_results({{.ranks = 2}, {.ranks = 3}, {.ranks = 8}});
}

TEST_F(ReproducibleTest, ResultsAreTheSameByMarks) {
  const auto one = checkpoint_of({});
  config_.fsdp.front = config::Front::kSpmd;
  testing::expect_equal_checkpoints(one, checkpoint_of({.ranks = 3}));
}

TEST_F(ReproducibleTest, TheDefaultDependsOnTheNumberOfRanks) {
  config_.training.reproducible = config::Reproducible::kRun;
  const auto one = testing::contents_of(checkpoint_of({})),
             three = testing::contents_of(checkpoint_of({.ranks = 3}));
  EXPECT_TRUE(std::ranges::any_of(
      one, [&](const auto& item) { return !at::equal(item.second, three.at(item.first)); }));
}

TEST_F(ReproducibleTest, CheckpointsOfAnotherArithmeticAreNamed) {
  util::set_log_level(util::LogLevel::kInfo);
  const auto told = [](const std::string& before) {
    return testing::log_lines([&] { warn_of_other_arithmetic({{"arithmetic", before}}, "step-1"); });
  };
  EXPECT_EQ(told(arithmetic()), "");
  const std::string lines = told("Other family 1");
  EXPECT_NE(lines.find("Other family 1"), std::string::npos) << lines;
  EXPECT_NE(lines.find(arithmetic()), std::string::npos) << lines;
}

}  // namespace
}  // namespace fsdp::train
