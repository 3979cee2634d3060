#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "checkpoint/folders.h"
#include "checkpoint/load.h"
#include "comm/single_communicator.h"
#include "comm/thread_communicator.h"
#include "support/checkpoint_contents.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"
#include "train/evaluate.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::train {
namespace {

using testing::borrowed;
using testing::TemporaryFolder;
using testing::values_of;
namespace fs = std::filesystem;

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override { util::set_log_level(util::LogLevel::kOff); }
  void TearDown() override { util::set_log_level(util::LogLevel::kInfo); }

  RunSummary train(int world_size, const config::Config& config) {
    RunSummary summary;
    comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
      Trainer trainer(config, borrowed(communicator), {});
      RunSummary mine = trainer.run();
      if (communicator.rank() == 0) summary = mine;
    });
    return summary;
  }

  util::ErrorKind failure(int world_size, const config::Config& config, const std::string& part) {
    try {
      train(world_size, config);
      ADD_FAILURE() << "expected an error with \"" << part << '"';
    } catch (const util::Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      return error.kind();
    }
    return util::ErrorKind::kUnexpected;
  }

  TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

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

TEST_F(TrainerTest, SeesEachSampleOnceWhileTheBatchGrows) {
  config_.training.gradient_accumulation_steps = 4;
  config_.training.batch_warmup_steps = 3;
  config_.training.steps = 5;
  train(2, config_);
  const std::vector<double> tokens = values_of(folder_ / "out/metrics.jsonl", "tokens");
  // 1, 2, 3, 4, 4 micro-steps of 2 ranks * 2 rows * 8 tokens.
  EXPECT_EQ(tokens, (std::vector<double>{32, 96, 192, 320, 448}));
  const std::vector<double> whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  // Stopped in between and resumed with other ranks and the same global batches, it is the same run.
  config_.run.output_dir = folder_ / "parts";
  config_.training.steps = 2;
  train(2, config_);
  config_.training.steps = 5;
  config_.data.micro_batch_size = 4;
  train(1, config_);
  const std::vector<double> parts = values_of(folder_ / "parts/metrics.jsonl", "loss");
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-5) << i;
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
  const std::vector<double> parts = values_of(folder_ / "parts/metrics.jsonl", "loss");
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-5) << i;
}

TEST_F(TrainerTest, TrainsForEpochs) {
  config_.training.epochs = 1.5;
  config_.lr_scheduler.warmup_steps =
      300;  // more than the default of training.steps, if epochs did not count
  // 2000 tokens in samples of 8 are 249 samples; 4 a step.
  EXPECT_EQ(failure(2, config_, "training.epochs = 1.5 are 93 steps here; lr_scheduler.warmup_steps"),
            util::ErrorKind::kUsage);
  config_.lr_scheduler.warmup_steps = 0;
  EXPECT_EQ(train(2, config_).step, 93);
  config_.run.output_dir = folder_ / "alone";
  EXPECT_EQ(train(1, config_).step, 186);
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
  config_.data.tokenizer = std::string(FSDP_SOURCE_DIR) + "/tests/data/bpe/gpt2_kind.json";
  EXPECT_EQ(failure(2, config_, "model.vocab_size: expected at least"), util::ErrorKind::kUsage);
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
  const std::vector<double> alone = values_of(folder_ / "alone/metrics.jsonl", "loss");
  ASSERT_EQ(alone.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(alone[i], whole[i], 1e-5) << i;
}

TEST_F(TrainerTest, AveragesOverTheTargetsThatCountAtAnyWorldSize) {
  for (const char* documents : {"mask", "split"}) {
    config_.data.documents = documents;
    config_.data.document_separator = 3;
    config_.data.micro_batch_size = 1;
    std::vector<std::vector<double>> losses, norms, validations;
    for (auto [world, accumulation] : {std::pair<int, int64_t>{1, 4}, {2, 2}, {4, 1}}) {
      config_.training.gradient_accumulation_steps = accumulation;
      config_.run.output_dir = folder_ / util::concat(documents, world);
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

TEST_F(TrainerTest, EndsEarlyWhenValidationsGetNoBetter) {
  config_.training.steps = 12;
  config_.evaluation.interval_steps = 2;
  config_.evaluation.patience = 2;
  config_.evaluation.min_delta = 100;  // the first stays the best
  RunSummary summary = train(2, config_);
  EXPECT_TRUE(summary.ended_early);
  EXPECT_FALSE(summary.stopped);
  EXPECT_EQ(summary.step, 6);
  EXPECT_EQ(summary.best->step, 2);
  EXPECT_EQ(summary.last_checkpoint.filename(), "step-00000006");
  // A run that resumes from there has nothing left to do, at any world size.
  summary = train(1, config_);
  EXPECT_TRUE(summary.ended_early);
  EXPECT_EQ(summary.step, 6);
  // With more patience it goes on.
  config_.evaluation.patience = 4;
  EXPECT_EQ(train(2, config_).step, 10);
}

TEST_F(TrainerTest, KeepsTheBestCheckpoint) {
  config_.training.steps = 8;
  config_.evaluation.interval_steps = 2;
  config_.checkpoint.keep_best = true;
  config_.checkpoint.keep_last = 1;
  config_.optimizer.lr = 3e-2;
  config_.lr_scheduler.name = "constant";
  RunSummary summary = train(2, config_);
  const std::vector<double> losses = values_of(folder_ / "out/metrics.jsonl", "validation_loss");
  ASSERT_EQ(losses.size(), 4u);
  const auto best = std::min_element(losses.begin(), losses.end());
  EXPECT_EQ(summary.best->loss, *best);
  EXPECT_EQ(summary.best->step, 2 * (best - losses.begin() + 1));
  // What the link leads to has that loss.
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    EXPECT_NEAR(evaluate(config_, borrowed(communicator), folder_ / "out/best").loss, *best, 1e-6);
  });
}

TEST_F(TrainerTest, EvaluatesWhatARunLeaves) {
  const double loss = *train(2, config_).validation_loss;
  const auto files_before = std::distance(fs::recursive_directory_iterator(folder_ / "out"), {});
  for (int world : {1, 3}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      const Validation found = evaluate(config_, borrowed(communicator), folder_ / "out");
      EXPECT_NEAR(found.loss, loss, 1e-6);
      EXPECT_EQ(found.bytes, found.tokens);  // data.tokenizer is "bytes"
    });
  }
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(folder_ / "out"), {}), files_before);
  config_.data.validation.clear();
  try {
    evaluate(config_, std::make_shared<comm::SingleCommunicator>(), folder_ / "out");
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("data.validation"), std::string::npos);
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

struct Resumption {
  const char* name;
  std::function<void(config::Config&)> change;
};

class ResumedRun : public TrainerTest, public ::testing::WithParamInterface<Resumption> {};

TEST_P(ResumedRun, IsBitwiseTheRunThatNeverStopped) {
  config_.data.shuffle = true;
  config_.lr_scheduler.name = "cosine";
  config_.lr_scheduler.warmup_steps = 2;
  config_.checkpoint.interval_steps = 3;
  config_.training.steps = 8;
  GetParam().change(config_);
  train(2, config_);
  auto whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  ASSERT_EQ(whole.size(), 8u);

  fs::rename(folder_ / "out/step-00000008", folder_ / "whole");
  fs::remove_all(folder_ / "out/step-00000006");
  train(2, config_);  // from step 3
  EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "loss"), whole);
  testing::expect_equal_checkpoints(folder_ / "whole", folder_ / "out/step-00000008");
}

void use_float16(config::Config& config) {
  config.mixed_precision.param_dtype = config.mixed_precision.reduce_dtype = "float16";
  config.loss_scaler.init_scale = 1e9;  // overflows at first, so that the scale changes on the way
  config.loss_scaler.growth_interval = 2;
}

INSTANTIATE_TEST_SUITE_P(
    All, ResumedRun,
    ::testing::Values(
        Resumption{"adamw", [](config::Config&) {}},
        Resumption{"muon",
                   [](config::Config& config) {
                     config.optimizer.name = "muon";
                     config.optimizer.momentum = 0.95;
                     config.optimizer.nesterov = true;
                   }},
        Resumption{"sgd_with_dampening",
                   [](config::Config& config) {
                     config.optimizer.name = "sgd";
                     config.optimizer.momentum = 0.9;
                     config.optimizer.dampening = 0.5;
                   }},
        Resumption{"skipping_spikes",
                   [](config::Config& config) {
                     // So low that ordinary steps are spikes, before the checkpoint and after it.
                     config.training.skip_zscore = 0.5;
                     config.training.skip_window = 2;
                     config.training.max_skipped_steps = 100;
                   }},
        Resumption{"tied_with_accumulation",
                   [](config::Config& config) {
                     config.model.tie_word_embeddings = true;
                     config.training.gradient_accumulation_steps = 2;
                   }},
        Resumption{"bfloat16",
                   [](config::Config& config) { config.mixed_precision.param_dtype = "bfloat16"; }},
        Resumption{"float16_with_loss_scaler", use_float16},
        Resumption{"asynchronous", [](config::Config& config) { config.checkpoint.asynchronous = true; }},
        Resumption{"asynchronous_float16_no_shard",
                   [](config::Config& config) {
                     use_float16(config);
                     config.checkpoint.asynchronous = true;
                     config.fsdp.strategy = "no_shard";
                   }},
        Resumption{"full", [](config::Config& config) { config.checkpoint.kind = "full"; }},
        Resumption{"replicas",
                   [](config::Config& config) {
                     config.fsdp.strategy = "hybrid_shard";
                     config.mesh.dcn = 2;
                   }}),
    [](const auto& info) { return info.param.name; });

TEST_F(TrainerTest, AFailedLastSaveFailsTheRunAtItsEndOnly) {
  config_.checkpoint.interval_steps = 2;
  config_.checkpoint.save_at_end = false;
  config_.training.steps = 7;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Trainer trainer(config_, borrowed(communicator), {});
    if (communicator.rank() == 0) {
      fs::rename(folder_ / "out", folder_ / "away");
      std::ofstream(folder_ / "out") << "in the way";
    }
    communicator.barrier({.unit = "test"});
    try {
      trainer.run();
      ADD_FAILURE() << "expected an error";
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), util::ErrorKind::kIo);
      EXPECT_NE(std::string(error.what()).find("step 6 could not be saved"), std::string::npos)
          << error.what();
    }
  });
  EXPECT_EQ(values_of(folder_ / "away/metrics.jsonl", "loss").size(), 7u);
}

TEST_F(TrainerTest, ADivergedRunFinishesTheSaveUnderWay) {
  config_.optimizer.lr = 1e30;
  config_.training.max_grad_norm = 0;
  config_.training.steps = 20;
  config_.checkpoint.interval_steps = 1;
  config_.checkpoint.asynchronous = true;
  EXPECT_EQ(failure(2, config_, "diverged at step"), util::ErrorKind::kDiverged);
  auto found = checkpoint::find_checkpoints(folder_ / "out");
  EXPECT_TRUE(found.torn.empty());
  EXPECT_FALSE(found.complete.empty());
}

TEST_F(TrainerTest, ResumesAtAnotherWorldSizeOnTheSameSamples) {
  config_.data.micro_batch_size = 6;
  config_.checkpoint.interval_steps = 3;
  train(1, config_);
  auto whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  fs::remove_all(folder_ / "out/step-00000006");
  config_.data.micro_batch_size = 2;
  train(3, config_);
  auto resumed = values_of(folder_ / "out/metrics.jsonl", "loss");
  ASSERT_EQ(resumed.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(resumed[i], whole[i], 1e-5 * whole[i]);
}

TEST_F(TrainerTest, MuonResumesAtAnotherWorldSizeAndLayout) {
  config_.optimizer.name = "muon";
  config_.optimizer.momentum = 0.95;
  config_.data.micro_batch_size = 6;
  config_.checkpoint.interval_steps = 3;
  train(1, config_);
  auto whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  fs::remove_all(folder_ / "out/step-00000006");
  config_.data.micro_batch_size = 2;
  config_.fsdp.layout = "per_parameter";
  train(3, config_);
  auto resumed = values_of(folder_ / "out/metrics.jsonl", "loss");
  ASSERT_EQ(resumed.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(resumed[i], whole[i], 1e-5 * whole[i]);
}

TEST_F(TrainerTest, AStrategyCanBeChangedAtACheckpoint) {
  config_.checkpoint.interval_steps = 3;
  train(2, config_);
  auto whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  for (const char* strategy : {"no_shard", "shard_grad_op", "full_shard"}) {
    fs::remove_all(folder_ / "out/step-00000006");
    config_.fsdp.strategy = strategy;
    train(2, config_);  // from step 3, written by the strategy before
    auto resumed = values_of(folder_ / "out/metrics.jsonl", "loss");
    ASSERT_EQ(resumed.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(resumed[i], whole[i], 1e-5 * whole[i]) << strategy;
    fs::remove_all(folder_ / "out");
    train(2, config_);
  }
}

TEST_F(TrainerTest, ValidationLossDoesNotDependOnTheWorldSize) {
  std::vector<double> losses;
  for (int world : {1, 2, 3}) {
    config_.run.output_dir = folder_ / ("out" + std::to_string(world));
    config_.optimizer.lr = 0;
    losses.push_back(*train(world, config_).validation_loss);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-6);
  EXPECT_NEAR(losses[2], losses[0], 1e-6);
}

TEST_F(TrainerTest, ValidatesAndSavesAtTheIntervalsAndKeepsTheLast) {
  config_.training.steps = 7;
  config_.evaluation.interval_steps = 2;
  config_.checkpoint.interval_steps = 2;
  config_.checkpoint.keep_last = 2;
  train(1, config_);
  std::vector<int64_t> validated, kept;
  for (const auto& line : testing::metrics_with(folder_ / "out/metrics.jsonl", "validation_loss")) {
    validated.push_back(line["step"]);
  }
  EXPECT_EQ(validated, (std::vector<int64_t>{2, 4, 6, 7}));
  for (const auto& found : checkpoint::find_checkpoints(folder_ / "out").complete) kept.push_back(found.step);
  EXPECT_EQ(kept, (std::vector<int64_t>{6, 7}));
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
                                                {"all_reduce other", 1}}));
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

TEST_F(TrainerTest, SavesNothingWhenToldSo) {
  config_.checkpoint.save_at_end = false;
  EXPECT_TRUE(train(1, config_).last_checkpoint.empty());
  EXPECT_TRUE(checkpoint::find_checkpoints(folder_ / "out").complete.empty());
}

TEST_F(TrainerTest, AFinishedRunHasNothingToTrain) {
  train(2, config_);
  RunSummary again = train(2, config_);
  EXPECT_EQ(again.step, 6);
  EXPECT_FALSE(again.loss.has_value());
}

TEST_F(TrainerTest, RefusesAFolderWithLaterStepsOfAnotherRun) {
  train(1, config_);
  config_.checkpoint.resume = "never";
  EXPECT_EQ(failure(1, config_, "already holds step-00000006"), util::ErrorKind::kUsage);
}

TEST_F(TrainerTest, BadDataIsOneErrorOnEveryRankAndNothingIsWritten) {
  config::Config bad = config_;
  bad.data.train = {folder_ / "missing.bin"};
  EXPECT_EQ(failure(2, bad, "missing.bin"), util::ErrorKind::kData);
  bad = config_;
  bad.model.vocab_size = 5;
  EXPECT_EQ(failure(2, bad, "vocab"), util::ErrorKind::kData);
  bad = config_;
  bad.data.micro_batch_size = 200;
  EXPECT_EQ(failure(2, bad, "samples"), util::ErrorKind::kData);
  bad = config_;
  bad.mesh.data = 4;
  EXPECT_EQ(failure(2, bad, "mesh"), util::ErrorKind::kUsage);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(TrainerTest, AnOutputFolderThatCannotBeWrittenIsAnIoError) {
  std::ofstream(folder_ / "file") << "x";
  config_.run.output_dir = folder_ / "file/out";
  EXPECT_EQ(failure(2, config_, "file/out"), util::ErrorKind::kIo);
}

TEST_F(TrainerTest, ADivergedRunSaysSoAndKeepsTheLastGoodCheckpoint) {
  config_.optimizer.lr = 1e30;
  config_.training.max_grad_norm = 0;
  config_.training.steps = 20;
  config_.checkpoint.interval_steps = 1;
  EXPECT_EQ(failure(2, config_, "diverged at step"), util::ErrorKind::kDiverged);
  auto found = checkpoint::find_checkpoints(folder_ / "out");
  EXPECT_TRUE(found.torn.empty());
  EXPECT_FALSE(found.complete.empty());
}

TEST_F(TrainerTest, Float16TrainsFromAScaleThatIsTooHighAndResumesBitwise) {
  config_.mixed_precision.param_dtype = "float16";
  config_.mixed_precision.keep_float32 = {"*norm*"};
  config_.loss_scaler.init_scale = std::ldexp(1.0, 30);
  config_.loss_scaler.growth_interval = 5;
  config_.training.steps = 40;
  config_.checkpoint.interval_steps = 21;  // a few good steps into an interval of the scaler
  train(2, config_);
  auto losses = values_of(folder_ / "out/metrics.jsonl", "loss");
  auto scales = values_of(folder_ / "out/metrics.jsonl", "loss_scale");
  ASSERT_EQ(losses.size(), 40u);
  ASSERT_EQ(scales.size(), 40u);
  EXPECT_LT(scales[0], config_.loss_scaler.init_scale) << "the first step was skipped";
  EXPECT_GT(*std::max_element(scales.begin() + 20, scales.end()), scales[20]) << "the scale grew again";
  EXPECT_LT(losses.back(), losses.front() - 0.1);

  fs::remove_all(folder_ / "out/step-00000040");
  train(2, config_);  // from step 21
  EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "loss"), losses);
  EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "loss_scale"), scales);
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
  EXPECT_EQ(losses_with([](auto& config) { config.fsdp.cpu_offload = true; }), expected);
}

TEST_F(TrainerTest, StopsOnAllRanksAndSavesWhenOneIsToldTo) {
  train(2, config_);
  auto whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  fs::remove_all(folder_ / "out");
  for (bool saves : {true, false}) {
    config_.checkpoint.save_at_end = saves;
    std::vector<RunSummary> summaries(2);
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      int asked = 0;
      Trainer trainer(config_, borrowed(communicator), {},
                      {.stop_requested = [&] { return communicator.rank() == 1 && ++asked == 4; }});
      summaries[static_cast<size_t>(communicator.rank())] = trainer.run();
    });
    for (const RunSummary& summary : summaries) {
      EXPECT_TRUE(summary.stopped);
      EXPECT_EQ(summary.step, 4);
      EXPECT_EQ(summary.last_checkpoint.filename(), saves ? "step-00000004" : "");
    }
    EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "loss").size(), 4u);
    if (saves) {  // and goes on as if never stopped
      EXPECT_FALSE(train(2, config_).stopped);
      EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "loss"), whole);
    }
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(TrainerTest, ToldToStopInItsLastStepIsDone) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    int asked = 0;
    Trainer trainer(config_, borrowed(communicator), {},
                    {.stop_requested = [&] { return ++asked == config_.training.steps; }});
    RunSummary summary = trainer.run();
    EXPECT_FALSE(summary.stopped);
    EXPECT_EQ(summary.step, config_.training.steps);
  });
}

}  // namespace
}  // namespace fsdp::train
