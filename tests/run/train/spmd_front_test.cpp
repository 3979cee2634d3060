// fsdp.front = "spmd": whole runs through spmd_fully_shard(), which have to be those through fully_shard().

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "run/train/evaluate.h"
#include "run/train/explain_step.h"
#include "run/train/run_parts.h"
#include "setup/config/checks.h"
#include "shard/spmd/sharding_marks.h"
#include "state/manifest/folders.h"
#include "support/log_lines.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;
using testing::values_of;

struct RunWay {
  std::string name;
  std::function<void(config::Config&)> change = [](config::Config&) {};
  comm::MeshOptions mesh = {.dcn = 2, .data = 2};
};

std::ostream& operator<<(std::ostream& out, const RunWay& way) { return out << way.name; }

void compute_in_bf16(config::Config& config) {
  config.mixed_precision.param_dtype = config.mixed_precision.reduce_dtype = "bfloat16";
}

std::vector<RunWay> run_ways() {
  return {
      {"Hybrid"},
      {"Alone", [](auto&) {}, {.dcn = 1, .data = 1}},
      {"ReplicasOnly", [](auto&) {}, {.dcn = 2, .data = 1}},
      {"ShardsOnly", [](auto&) {}, {.dcn = 1, .data = 3}},
      {"FullShard", [](auto& config) { config.fsdp.strategy = "full_shard"; }},
      {"ShardGradOp", [](auto& config) { config.fsdp.strategy = "shard_grad_op"; }, {.dcn = 1, .data = 2}},
      {"HybridZero2", [](auto& config) { config.fsdp.strategy = "hybrid_shard_zero2"; }},
      {"NoShard", [](auto& config) { config.fsdp.strategy = "no_shard"; }, {.dcn = 1, .data = 2}},
      {"Flat", [](auto& config) { config.fsdp.layout = "flat"; }},
      {"OneDimensionalToo", [](auto& config) { config.fsdp.shard_1d_parameters = true; }},
      {"FirstDimension", [](auto& config) { config.fsdp.shard_dimension = "first"; }},
      {"Gpt2", [](auto& config) { config.model = testing::tiny_options("gpt2"); }},
      {"Blocks",
       [](auto& config) {
         config.fsdp.min_num_params = 1'000'000;
         config.fsdp.wrap_stages = {"block"};
       }},
      {"Recomputed", [](auto& config) { config.activation_checkpointing.mode = "full"; }},
      {"Bf16", compute_in_bf16},
      {"Float8",
       [](auto& config) {
         compute_in_bf16(config);
         config.training.float8 = "tensorwise";
         config.model.hidden_size = 32;  // multiples of 16
         config.model.intermediate_size = 48;
       }},
      {"Offloaded", [](auto& config) { config.fsdp.cpu_offload = config.fsdp.move_grads_to_cpu = true; }},
      {"Accumulated",
       [](auto& config) {
         config.training.gradient_accumulation_steps = 2;
         config.training.no_sync = true;
       }},
      {"Documents",
       [](auto& config) {
         config.data.documents = "mask";
         config.data.document_separator = 10;
       }},
      {"Samples",
       [](auto& config) {
         config.data.tokenizer = "bytes";
         config.logging.sample_every = 2;
         config.logging.sample_prompt = "\x01\x02\x03";
         config.logging.sample_tokens = 4;
       }},
      {"Accuracy", [](auto& config) { config.evaluation.accuracy = true; }},
  };
}

class SpmdFront : public TrainerTest, public ::testing::WithParamInterface<RunWay> {
 protected:
  SpmdFront() {
    config_.fsdp.layout = "per_parameter";
    config_.evaluation.interval_steps = 3;
  }

  /// The same run through either front.
  config::Config through(const std::string& front) const {
    config::Config config = config_;
    config.fsdp.front = front;
    config.run.output_dir = folder_ / front;
    return config;
  }
  std::vector<double> metric(const std::string& front, const std::string& key) const {
    return values_of(folder_ / front / "metrics.jsonl", key);
  }
};

TEST_P(SpmdFront, TrainsBitForBitAsFullyShardDoes) {
  config_.mesh = GetParam().mesh;
  if (config_.mesh.dcn > 1) config_.fsdp.strategy = "hybrid_shard";
  GetParam().change(config_);
  const int ranks = static_cast<int>(config_.mesh.dcn * config_.mesh.data);
  for (const char* front : {"fully_shard", "spmd"}) train(ranks, through(front));
  for (const char* key : {"loss", "grad_norm", "validation_loss"}) {
    const std::vector<double> expected = metric("fully_shard", key);
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(metric("spmd", key), expected) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, SpmdFront, ::testing::ValuesIn(run_ways()),
                         [](const auto& info) { return info.param.name; });

class SpmdFrontTest : public SpmdFront {};

TEST_F(SpmdFrontTest, ResumesWhatFullyShardHasSavedAndTheOtherWayRound) {
  config_.checkpoint.interval_steps = 3;
  config_.mesh = {.dcn = 1, .data = 2};
  const auto whole = through("fully_shard");
  train(2, whole);
  const std::vector<double> expected = values_of(folder_ / "fully_shard/metrics.jsonl", "loss");
  for (const auto& [first, second] : {std::pair("fully_shard", "spmd"), std::pair("spmd", "fully_shard")}) {
    config::Config config = through(first);
    config.run.output_dir = folder_ / concat("from_", first);
    config.training.steps = 3;
    train(2, config);
    config.fsdp.front = second;
    config.training.steps = 6;
    train(2, config);
    EXPECT_EQ(values_of(config.run.output_dir + "/metrics.jsonl", "loss"), expected) << first;
  }
}

TEST_F(SpmdFrontTest, EvaluatesAsFullyShardDoes) {
  config_.checkpoint.interval_steps = 6;
  config_.mesh = {.dcn = 1, .data = 2};
  const RunSummary trained = train(2, through("spmd"));
  std::vector<double> losses;
  for (const char* front : {"fully_shard", "spmd"}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      const Validation found =
          *evaluate(through(front), testing::borrowed(communicator), trained.last_checkpoint).validation;
      if (communicator.rank() == 0) losses.push_back(found.loss);
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[1], *trained.validation_loss);
}

TEST_F(SpmdFrontTest, ExplainsItsStepWithTheNumbersOfTheFormula) {
  config_.mesh = {.dcn = 1, .data = 2};
  std::string text;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    const std::string mine = explain_step(through("spmd"), testing::borrowed(communicator));
    if (communicator.rank() == 0) text = mine;
  });
  EXPECT_THAT(text, HasSubstr("reduce-scatters of gradients"));
  EXPECT_EQ(text.find("OVER THE BOUND"), std::string::npos) << text;
  std::istringstream lines(text.substr(text.find("all-gathers in forward")));
  int equal = 0;
  for (std::string line; std::getline(lines, line) && !line.empty();) equal += line.ends_with("  equal");
  EXPECT_EQ(equal, 9) << text;
}

TEST_F(SpmdFrontTest, ChoosesTheUnitsOfTheWrapKeysAndMarksBatches) {
  config_.fsdp.min_num_params = 500;
  config_.mesh = {.dcn = 1, .data = 2};
  const config::Config spmd = through("spmd"), fully = through("fully_shard");
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    const comm::Mesh mesh(config_.mesh, testing::borrowed(communicator));
    const ShardedModel found = build_sharded_model(spmd, mesh, nullptr);
    const ShardedModel expected = build_sharded_model(fully, mesh, nullptr);
    ASSERT_EQ(found.engine->units().size(), expected.engine->units().size());
    EXPECT_GT(found.engine->units().size(), 2U);
    for (size_t i = 0; i < found.engine->units().size(); ++i) {
      EXPECT_EQ(found.engine->units()[i]->name(), expected.engine->units()[i]->name());
    }
    const data::TrainLoader loader = open_training_data(spmd, *mesh.world());
    const data::Batch batch = data::PrefetchingBatches(loader, prefetch_options(spmd, mesh)).batch(0, 0);
    ASSERT_TRUE(shard::sharding_of(batch.inputs));
    EXPECT_EQ(shard::sharding_of(batch.inputs)->global_shape, (std::vector<int64_t>{4, 8}));
    const data::Batch plain = data::PrefetchingBatches(loader, prefetch_options(fully, mesh)).batch(0, 0);
    EXPECT_FALSE(shard::sharding_of(plain.inputs));
  });
}

TEST_F(SpmdFrontTest, RefusesStageTypesThatTheModelLacks) {
  config_.fsdp.wrap_stages = {"blok"};
  EXPECT_EQ(failure(1, through("spmd"), "the model has no stage of type \"blok\""), ErrorKind::kUsage);
  config_.fsdp.wrap_stages = {};
  config_.fsdp.exclude_stages = {"atention"};
  EXPECT_EQ(failure(1, through("spmd"), "the model has no stage of type \"atention\""), ErrorKind::kUsage);
}

TEST_F(SpmdFrontTest, RefusesBatchesOfVaryingSizes) {
  config_.data.documents = "split";
  config_.data.max_tokens = 64;
  const auto conflicts = config::find_conflicts(through("spmd"));
  ASSERT_EQ(conflicts.size(), 1U);
  EXPECT_THAT(conflicts.front().message,
              HasSubstr("data.max_tokens must be 0, because with fsdp.front = spmd"));
  EXPECT_TRUE(config::find_conflicts(through("fully_shard")).empty());
}

}  // namespace
}  // namespace fsdp::train
