#include "run/train/trainer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "base/util/file.h"
#include "model/families/architectures.h"
#include "model/nn/loss.h"
#include "run/train/device.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/log_lines.h"
#include "support/source_folder.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using testing::borrowed;
using testing::values_of;
namespace fs = std::filesystem;

TEST_F(TrainerTest, LearnsAndLeavesMetricsConfigAndACheckpoint) {
  config_.training.steps = 30;
  RunSummary summary = train(2, config_);
  auto losses = values_of(folder_ / "out/metrics.jsonl", "loss");
  ASSERT_EQ(losses.size(), 30u);
  EXPECT_LT(losses.back(), losses.front() - 0.2);
  ASSERT_TRUE(summary.validation_loss.has_value());
  EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "validation_loss"),
            std::vector<double>{*summary.validation_loss});
  EXPECT_TRUE(fs::exists(folder_ / "out/config.toml"));
  EXPECT_EQ(summary.last_checkpoint.filename(), "step-00000030");
  EXPECT_EQ(checkpoint::incompleteness(summary.last_checkpoint), "");
}

TEST_F(TrainerTest, LogsTheMeanLossOfTheStepsOfALineBesideThatOfTheLast) {
  config_.training.steps = 8;
  train(2, config_);
  const std::vector<double> each = values_of(folder_ / "out/metrics.jsonl", "loss");
  EXPECT_TRUE(values_of(folder_ / "out/metrics.jsonl", "last_loss").empty()) << "it would be the loss";
  config_.logging.interval_steps = 3;
  config_.run.output_dir = folder_ / "means";
  train(2, config_);
  const std::vector<double> means = values_of(folder_ / "means/metrics.jsonl", "loss");
  const std::vector<double> expected = {(each[0] + each[1] + each[2]) / 3, (each[3] + each[4] + each[5]) / 3,
                                        (each[6] + each[7]) / 2};
  expect_near(means, expected);
  expect_near(values_of(folder_ / "means/metrics.jsonl", "last_loss"), {each[2], each[5], each[7]});
  // A run that was stopped within a line has the same line in the end.
  config_.run.output_dir = folder_ / "parts";
  config_.training.steps = 5;
  train(2, config_);
  config_.training.steps = 8;
  train(2, config_);
  const std::vector<double> of_parts = values_of(folder_ / "parts/metrics.jsonl", "loss");
  EXPECT_EQ(of_parts, (std::vector<double>{means[0], of_parts[1], means[1], means[2]}));
  EXPECT_NEAR(of_parts[1], (each[3] + each[4]) / 2, 1e-6);
}

TEST_F(TrainerTest, EstimatesTheRemainingTimeInEveryLine) {
  config_.training.steps = 6;
  config_.evaluation.interval_steps = 2;
  train(2, config_);
  const std::vector<double> left = values_of(folder_ / "out/metrics.jsonl", "eta_seconds");
  ASSERT_EQ(left.size(), 6u);
  for (const double seconds : left) EXPECT_GE(seconds, 0);
  EXPECT_GT(left.back(), 0) << "the validation after the last step is still to come";
}

TEST_F(TrainerTest, RecordsOfWhatMfuIsAShareAndNoMoreThanAllOfIt) {
  config_.logging.peak_tflops = 0;
  train(2, config_);
  const auto mfu = values_of(folder_ / "out/metrics.jsonl", "mfu");
  const auto peaks = values_of(folder_ / "out/metrics.jsonl", "peak_tflops");
  ASSERT_EQ(peaks.size(), mfu.size());
  for (const double share : mfu) EXPECT_LE(share, 1);
  const auto environment = nlohmann::json::parse(util::read_file(folder_ / "out/environment.json"));
  EXPECT_EQ(environment.at("peak_tflops_source"), "measured");
  EXPECT_GE(peaks.front(), environment.at("peak_tflops_a_rank").get<double>());
  config_.logging.peak_tflops = 1'000;  // more than two threads reach, so that it stays
  config_.run.output_dir = folder_ / "given";
  train(2, config_);
  for (const double given : values_of(folder_ / "given/metrics.jsonl", "peak_tflops"))
    EXPECT_EQ(given, 1'000);
  EXPECT_LT(values_of(folder_ / "given/metrics.jsonl", "mfu").back(), 0.1);
}

TEST_F(TrainerTest, HfuCountsRecomputationAndMfuDoesNot) {
  train(2, config_);
  const auto metrics = folder_ / "out/metrics.jsonl";
  ASSERT_EQ(values_of(metrics, "hfu").size(), static_cast<size_t>(config_.training.steps));
  EXPECT_EQ(values_of(metrics, "hfu"), values_of(metrics, "mfu"));
  config_.run.output_dir = folder_ / "recomputed";
  config_.activation_checkpointing.mode = "full";
  train(2, config_);
  const plan::FlopsAToken flops =
      plan::flops_a_token(config_.model, config_.data.sequence_length, config_.activation_checkpointing);
  EXPECT_GT(flops.hardware, 1.1 * flops.model);
  for (const auto& line : testing::metrics_with(folder_ / "recomputed/metrics.jsonl", "hfu")) {
    EXPECT_NEAR(line.at("hfu").get<double>() / line.at("mfu").get<double>(), flops.hardware / flops.model,
                1e-9);
  }
}

TEST_F(TrainerTest, SeesEachSampleOnceWhileTheBatchGrows) {
  config_.training.gradient_accumulation_steps = 4;
  config_.training.batch_warmup_steps = 3;
  config_.training.steps = 5;
  train(2, config_);
  const std::vector<double> tokens = values_of(folder_ / "out/metrics.jsonl", "tokens");
  // 1, 2, 3, 4, 4 micro-batches of 2 ranks * 2 rows * 8 tokens.
  EXPECT_EQ(tokens, (std::vector<double>{32, 96, 192, 320, 448}));
  const std::vector<double> whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  // Stopped in between and resumed with other ranks and the same global batches, it is the same run.
  config_.run.output_dir = folder_ / "parts";
  config_.training.steps = 2;
  train(2, config_);
  config_.training.steps = 5;
  config_.data.micro_batch_size = 4;
  train(1, config_);
  expect_near(values_of(folder_ / "parts/metrics.jsonl", "loss"), whole);
}

TEST_F(TrainerTest, DropsTheSameAfterAResumeAtAnyWorldSize) {
  config_.model.hidden_dropout = config_.model.attention_dropout = 0.2;
  config_.training.label_smoothing = 0.1;
  config_.training.z_loss = 1e-3;
  train(2, config_);
  const std::vector<double> whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  config_.run.output_dir = folder_ / "parts";
  config_.training.steps = 3;
  train(2, config_);
  config_.training.steps = 6;
  config_.data.micro_batch_size = 4;
  config_.activation_checkpointing.mode = "full";
  train(1, config_);
  expect_near(values_of(folder_ / "parts/metrics.jsonl", "loss"), whole);
}

TEST_F(TrainerTest, TrainsForEpochs) {
  config_.training.epochs = 1.5;
  config_.lr_scheduler.warmup_steps = 300;
  // 2000 tokens in samples of 8 are 249 samples; 4 a step.
  EXPECT_EQ(train(2, config_).step, 93);
  config_.run.output_dir = folder_ / "alone";
  EXPECT_EQ(train(1, config_).step, 186);
}

TEST_F(TrainerTest, WarnsOfBlocksInTheRootUnit) {
  util::set_log_level(util::LogLevel::kInfo);
  config_.training.steps = 1;
  config_.fsdp.min_num_params = 1'000'000;
  const std::string lines = testing::log_lines([&] { train(2, config_); });
  EXPECT_NE(lines.find("the root unit holds "), std::string::npos) << lines;
  config_.run.output_dir = folder_ / "blocks";
  config_.fsdp.min_num_params = 1;
  EXPECT_EQ(testing::log_lines([&] { train(2, config_); }).find("the root unit holds "), std::string::npos);
}

TEST_F(TrainerTest, CutsTheWarmUpOfAShortTrialWithAWarning) {
  util::set_log_level(util::LogLevel::kInfo);
  config_.training.steps = 2;
  config_.lr_scheduler.warmup_steps = 700;
  const std::string lines = testing::log_lines([&] { EXPECT_EQ(train(2, config_).step, 2); });
  EXPECT_NE(lines.find("the run has only 2 steps, so lr_scheduler.warmup_steps is cut from 700 to 2"),
            std::string::npos)
      << lines;
  EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "lr").back(), config_.optimizer.lr);
}

TEST_F(TrainerTest, SeesTheSameGlobalBatchOnAnyNumberOfRanks) {
  config_.training.global_batch_size = 8;
  config_.training.gradient_accumulation_steps = 0;
  config_.training.batch_warmup_steps = 2;
  config_.checkpoint.interval_steps = 3;
  config_.training.steps = 6;
  train(2, config_);
  const std::vector<double> whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  const std::vector<double> tokens = values_of(folder_ / "out/metrics.jsonl", "tokens");
  config_.run.output_dir = folder_ / "on";
  config_.checkpoint.resume = folder_ / "out/step-00000003";
  util::set_log_level(util::LogLevel::kInfo);
  const std::string lines = testing::log_lines([&] { train(1, config_); });
  EXPECT_EQ(lines.find("the global batch is"), std::string::npos) << lines;
  EXPECT_EQ(lines.find("differs from the run so far: training."), std::string::npos) << lines;
  expect_near(values_of(folder_ / "on/metrics.jsonl", "loss"), {whole.begin() + 3, whole.end()});
  EXPECT_EQ(values_of(folder_ / "on/metrics.jsonl", "tokens").back(), tokens.back());
  config_.training.global_batch_size = 9;
  EXPECT_EQ(failure(2, config_, "but is 9 = 2 * 4 + 1; set it to 8 or 12"), ErrorKind::kUsage);
}

TEST_F(TrainerTest, SaysWhenAResumeChangesTheGlobalBatch) {
  config_.training.steps = 2;
  train(2, config_);
  config_.training.steps = 3;
  util::set_log_level(util::LogLevel::kInfo);
  const std::string lines = testing::log_lines([&] { train(1, config_); });
  EXPECT_NE(lines.find("the global batch is 2 samples per step from here on (1 ranks x 2 x 1 "
                       "micro-batches); it was "
                       "4 up to step 2; training.global_batch_size = 4 keeps it"),
            std::string::npos)
      << lines;
}

TEST_F(TrainerTest, EndsItsEpochsAfterTheSameSamplesWhateverTheRanks) {
  config_.training.epochs = 0.4;  // 99.6 samples
  config_.training.batch_warmup_steps = 2;
  config_.training.gradient_accumulation_steps = 2;
  config_.checkpoint.interval_steps = 5;
  config_.checkpoint.keep_last = 0;
  // Steps of 4, 4 and from then on 8 samples.
  EXPECT_EQ(train(2, config_).step, 2 + 11);
  config_.checkpoint.resume = folder_ / "out/step-00000005";
  config_.run.output_dir = folder_ / "on";
  // 32 samples were seen; 67.6 are left for steps of 4.
  EXPECT_EQ(train(1, config_).step, 5 + 16);
  config_.training.epochs = 0.1;
  config_.run.output_dir = folder_ / "done";
  EXPECT_EQ(train(1, config_).step, 5);
}

TEST_F(TrainerTest, RefusesATokenizerWithMoreTokensThanTheModel) {
  config_.data.tokenizer = testing::source_folder() + "/tests/data/bpe/gpt2_kind.json";
  EXPECT_EQ(failure(2, config_, "model.vocab_size must be at least"), ErrorKind::kUsage);
}

TEST_F(TrainerTest, RefusesToRecordGpuMemoryWithoutAGpu) {
  config_.logging.memory_snapshot = true;
  EXPECT_EQ(failure(2, config_, "logging.memory_snapshot requires a GPU, but the run is on cpu"),
            ErrorKind::kUsage);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(TrainerTest, TrainsTheSameWithAndWithoutLoadingAhead) {
  config_.training.gradient_accumulation_steps = 2;
  std::vector<std::vector<double>> losses;
  for (int64_t ahead : {0, 1, 5}) {
    config_.data.prefetch_batches = ahead;
    config_.run.output_dir = folder_ / std::to_string(ahead);
    train(2, config_);
    losses.push_back(values_of(fs::path(config_.run.output_dir) / "metrics.jsonl", "loss"));
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
}

TEST_F(TrainerTest, TrainsOnAMixtureOfSetsAtAnyWorldSize) {
  testing::write_token_file(folder_ / "other.bin", 900, config_.model.vocab_size);
  config_.data.train.push_back(folder_ / "other.bin");
  config_.data.train_weights = {1, 2};
  train(2, config_);
  const std::vector<double> whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  config_.run.output_dir = folder_ / "alone";
  config_.data.micro_batch_size = 4;
  train(1, config_);
  expect_near(values_of(folder_ / "alone/metrics.jsonl", "loss"), whole);
}

TEST_F(TrainerTest, AveragesOverTheTargetsThatCountAtAnyWorldSize) {
  for (const char* documents : {"mask", "split"}) {
    config_.data.documents = documents;
    config_.data.document_separator = 3;
    config_.data.micro_batch_size = 1;
    std::vector<std::vector<double>> losses, norms, validations;
    for (auto [world, accumulation] : {std::pair<int, int64_t>{1, 4}, {2, 2}, {4, 1}}) {
      config_.training.gradient_accumulation_steps = accumulation;
      config_.run.output_dir = folder_ / concat(documents, world);
      train(world, config_);
      const fs::path metrics = fs::path(config_.run.output_dir) / "metrics.jsonl";
      losses.push_back(values_of(metrics, "loss"));
      norms.push_back(values_of(metrics, "grad_norm"));
      validations.push_back(values_of(metrics, "validation_loss"));
    }
    for (size_t other : {1, 2}) {
      for (size_t i = 0; i < losses[0].size(); ++i) {
        EXPECT_NEAR(losses[other][i], losses[0][i], 1e-5) << documents << " " << i;
        EXPECT_NEAR(norms[other][i], norms[0][i], 1e-5) << documents << " " << i;
      }
      EXPECT_NEAR(validations[other][0], validations[0][0], 1e-5);
    }
  }
}

TEST_F(TrainerTest, TrainsOverAMeshAsOverARowOfRanks) {
  train(4, config_);
  std::vector<double> row = values_of(folder_ / "out/metrics.jsonl", "loss");
  for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2", "full_shard"}) {
    config::Config meshed = config_;
    meshed.run.output_dir = folder_ / strategy;
    meshed.fsdp.strategy = strategy;
    meshed.mesh.dcn = 2;
    train(4, meshed);
    std::vector<double> losses = values_of(folder_ / strategy / "metrics.jsonl", "loss");
    ASSERT_EQ(losses.size(), row.size());
    for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(losses[i], row[i], 1e-4 * row[i]) << strategy << i;
  }
}

TEST_F(TrainerTest, ComparesReplicasBeforeTheFirstStepAndEverySoManySteps) {
  config_.fsdp.strategy = "hybrid_shard";
  config_.mesh.dcn = 2;
  config_.logging.trace_communication = true;
  config_.fsdp.replica_check_interval = 4;
  train(4, config_);
  std::vector<int64_t> steps;
  std::istringstream lines(util::read_file(folder_ / "out/trace.rank3.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    auto event = nlohmann::json::parse(line);
    if (event["unit"] == "comparison of replicas") steps.push_back(event["step"]);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 0, 4, 4})) << "over the replicas, then over all ranks";
}

TEST_F(TrainerTest, RefusesReplicasThatDoNotStartEqual) {
  for (const char* name : {"a", "b"}) {
    config::Config other = config_;
    other.run.output_dir = folder_ / name;
    other.run.seed = *name;
    other.training.steps = 1;
    train(1, other);
  }
  for (const char* strategy : {"hybrid_shard", "no_shard"}) {
    config_.fsdp.strategy = strategy;
    config_.mesh = {.dcn = 2, .data = 2};
    std::string message;
    try {
      comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
        config::Config mine = config_;
        mine.model.init_from = folder_ / (communicator.rank() == 3 ? "b" : "a") / "step-00000001";
        Trainer trainer(mine, borrowed(communicator), {});
      });
    } catch (const util::Error& error) {
      message = error.what();
    }
    EXPECT_NE(message.find("before the first step: expected the same values of parameter "),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("found different ones on rank 3"), std::string::npos) << message;
  }
}

TEST_F(TrainerTest, CountsTokensAndStepsOfTheWholeWorld) {
  config_.training.gradient_accumulation_steps = 3;
  train(2, config_);
  auto lines = testing::metrics_with(folder_ / "out/metrics.jsonl", "loss");
  EXPECT_EQ(lines.back()["step"], 6);
  EXPECT_EQ(lines.back()["tokens"], 6 * 3 * 2 * 2 * 8);
}

TEST_F(TrainerTest, TracesEveryCollectiveAndBufferOfAStep) {
  config_.logging.trace_communication = true;
  config_.data.validation.clear();
  train(2, config_);
  std::map<std::string, int> counts;
  std::map<std::string, int64_t> payload, live;
  for (const auto& line : testing::metrics_with(folder_ / "out/trace.rank1.jsonl", "op")) {
    if (line["op"] == "buffer") {
      int64_t bytes = line["bytes"];
      live[line["kind"]] += line["event"] == "allocate" ? bytes : -bytes;
    } else if (line["step"] == 5) {
      ++counts[line["op"].get<std::string>() + " " + line["pass"].get<std::string>()];
      payload[line["op"]] += line["bytes"].get<int64_t>();
    }
  }
  // Three blocks and the root: N gathers in forward; in backward the last block and the root are still there.
  EXPECT_EQ(counts, (std::map<std::string, int>{{"all_gather forward", 4},
                                                {"all_gather backward", 2},
                                                {"reduce_scatter backward", 4},
                                                {"all_reduce optimizer", 1},
                                                {"all_reduce other", 2}}));  // loss, and paces of the ranks
  int64_t block = 1176 * 4 / 2, root = (2 * 17 * 12 + 12) * 4 / 2;
  EXPECT_EQ(payload["reduce_scatter"], 3 * block + root);
  EXPECT_EQ(payload["all_gather"], 5 * block + root);
  EXPECT_EQ(live, (std::map<std::string, int64_t>{{"parameters", 0}, {"gradients", 0}}));
}

TEST_F(TrainerTest, TheTraceOfWholeUnitsHasNoUnshardedBuffers) {
  config_.logging.trace_communication = true;
  config_.data.validation.clear();
  config_.fsdp.strategy = "no_shard";
  train(2, config_);
  auto lines = testing::metrics_with(folder_ / "out/trace.rank0.jsonl", "op");
  EXPECT_FALSE(lines.empty());
  for (const auto& line : lines) EXPECT_NE(line["op"], "buffer") << line;
}

TEST_F(TrainerTest, BadDataIsOneErrorOnEveryRankAndNothingIsWritten) {
  config::Config bad = config_;
  bad.data.train = {folder_ / "missing.bin"};
  EXPECT_EQ(failure(2, bad, "missing.bin"), ErrorKind::kData);
  bad = config_;
  bad.model.vocab_size = 5;
  EXPECT_EQ(failure(2, bad, "vocab"), ErrorKind::kData);
  bad = config_;
  bad.data.micro_batch_size = 200;
  EXPECT_EQ(failure(2, bad, "samples"), ErrorKind::kData);
  bad = config_;
  bad.mesh.data = 4;
  EXPECT_EQ(failure(2, bad, "mesh"), ErrorKind::kUsage);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(TrainerTest, AnOutputFolderThatCannotBeWrittenIsAnIoError) {
  std::ofstream(folder_ / "file") << "x";
  config_.run.output_dir = folder_ / "file/out";
  EXPECT_EQ(failure(2, config_, "file/out"), ErrorKind::kIo);
}

TEST_F(TrainerTest, OptionsOfTheScheduleChangeNoBitOfTheLosses) {
  auto losses_with = [&](const std::function<void(config::Config&)>& change) {
    config::Config config = config_;
    config.fsdp.min_num_params = 400;
    change(config);
    train(2, config);
    auto losses = values_of(folder_ / "out/metrics.jsonl", "loss");
    fs::remove_all(folder_ / "out");
    return losses;
  };
  auto expected = losses_with([](auto&) {});
  ASSERT_EQ(expected.size(), 6u);
  for (const char* prefetch : {"none", "explicit"}) {
    EXPECT_EQ(losses_with([&](auto& config) { config.fsdp.forward_prefetch = prefetch; }), expected);
  }
  for (const char* prefetch : {"none", "post"}) {
    EXPECT_EQ(losses_with([&](auto& config) { config.fsdp.backward_prefetch = prefetch; }), expected);
  }
  EXPECT_EQ(losses_with([](auto& config) { config.fsdp.limit_all_gathers = false; }), expected);
  EXPECT_EQ(losses_with([](auto& config) { config.fsdp.reshard_after_forward = false; }), expected);
  EXPECT_EQ(losses_with([](auto& config) {
              config.fsdp.reshard_root_after_forward = config.fsdp.reshard_last_after_forward = true;
            }),
            expected);
  EXPECT_EQ(losses_with([](auto& config) { config.fsdp.keep_after_forward = {"model.layers.1"}; }), expected);
  EXPECT_EQ(losses_with([](auto& config) { config.activation_checkpointing.mode = "full"; }), expected);
  for (const char* mode : {"selective", "offload"}) {
    for (const double budget : {0.0, 0.1, 0.3, 0.7}) {
      EXPECT_EQ(losses_with([&](auto& config) {
                  config.activation_checkpointing.mode = mode;
                  config.activation_checkpointing.memory_budget = budget;
                }),
                expected)
          << mode << " " << budget;
    }
  }
  EXPECT_EQ(losses_with([](auto& config) { config.fsdp.cpu_offload = true; }), expected);
}

TEST_F(TrainerTest, RefusesOperationsThatMayDifferInADeterministicRun) {
  nn::losses().add("puts", [](const at::Tensor& logits, const at::Tensor& targets, const auto&) {
    logits.detach().clone().put_(at::zeros({2}, at::kLong), at::ones({2}));
    return nn::next_token_loss(logits, targets);
  });
  config_.training.loss = "puts";
  train(1, config_);
  fs::remove_all(folder_ / "out");
  set_deterministic(true);
  EXPECT_EQ(failure(1, config_, "training.deterministic requires"), ErrorKind::kUsage);
  EXPECT_EQ(failure(1, config_, "put_ has none"), ErrorKind::kUsage);
  set_deterministic(false);
}

}  // namespace
}  // namespace fsdp::train
