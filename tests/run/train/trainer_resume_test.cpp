#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <mutex>

#include "run/train/trainer.h"
#include "state/manifest/folders.h"
#include "support/blocked_folder.h"
#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using testing::borrowed;
using testing::values_of;
namespace fs = std::filesystem;

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
        Resumption{"lamb_bfloat16_replicas",
                   [](config::Config& config) {
                     config.optimizer.name = "lamb";
                     config.mixed_precision.param_dtype = "bfloat16";
                     config.fsdp.strategy = "hybrid_shard";
                     config.mesh.dcn = 2;
                   }},
        Resumption{"adafactor",
                   [](config::Config& config) {
                     config.optimizer.name = "adafactor";
                     config.optimizer.lr = 1e-2;
                   }},
        Resumption{"adafactor_offloaded_float16_averaged_asynchronous",
                   [](config::Config& config) {
                     use_float16(config);
                     config.optimizer.name = "adafactor";
                     config.optimizer.beta1 = 0.9;
                     config.optimizer.ema_decay = 0.9;
                     config.fsdp.cpu_offload = true;
                     config.checkpoint.asynchronous = true;
                   }},
        Resumption{"adamax_averaged",
                   [](config::Config& config) {
                     config.optimizer.name = "adamax";
                     config.optimizer.ema_decay = 0.9;
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
        Resumption{"stored_in_bfloat16",
                   [](config::Config& config) {
                     config.fsdp.param_storage = config.mixed_precision.param_dtype = "bfloat16";
                   }},
        Resumption{"stored_in_bfloat16_offloaded_lamb_averaged",
                   [](config::Config& config) {
                     config.fsdp.param_storage = config.mixed_precision.param_dtype = "bfloat16";
                     config.mixed_precision.keep_float32 = {"*norm*"};
                     config.optimizer.name = "lamb";
                     config.optimizer.ema_decay = 0.9;
                     config.fsdp.cpu_offload = config.fsdp.move_grads_to_cpu = true;
                   }},
        Resumption{"stored_in_float16_full_muon",
                   [](config::Config& config) {
                     use_float16(config);
                     config.fsdp.param_storage = "float16";
                     config.checkpoint.kind = "full";
                     config.optimizer.name = "muon";
                     config.optimizer.momentum = 0.95;
                   }},
        Resumption{"stored_in_float16_replicas_asynchronous",
                   [](config::Config& config) {
                     use_float16(config);
                     config.fsdp.param_storage = "float16";
                     config.fsdp.strategy = "hybrid_shard";
                     config.mesh.dcn = 2;
                     config.checkpoint.asynchronous = true;
                   }},
        Resumption{"states_in_bfloat16",
                   [](config::Config& config) { config.optimizer.state_dtype = "bfloat16"; }},
        Resumption{"all_in_bfloat16",
                   [](config::Config& config) {
                     config.fsdp.param_storage = config.mixed_precision.param_dtype = "bfloat16";
                     config.mixed_precision.reduce_dtype = "bfloat16";
                     config.mixed_precision.keep_low_precision_grads = true;
                     config.optimizer.state_dtype = "bfloat16";
                   }},
        Resumption{"states_in_bfloat16_muon_averaged",
                   [](config::Config& config) {
                     config.optimizer.state_dtype = "bfloat16";
                     config.optimizer.name = "muon";
                     config.optimizer.momentum = 0.95;
                     config.optimizer.ema_decay = 0.9;
                   }},
        Resumption{"asynchronous", [](config::Config& config) { config.checkpoint.asynchronous = true; }},
        Resumption{"asynchronous_float16_no_shard",
                   [](config::Config& config) {
                     use_float16(config);
                     config.checkpoint.asynchronous = true;
                     config.fsdp.strategy = "no_shard";
                   }},
        Resumption{"full", [](config::Config& config) { config.checkpoint.kind = "full"; }},
        Resumption{"global_bfloat16",
                   [](config::Config& config) {
                     config.mixed_precision.param_dtype = "bfloat16";
                     config.fsdp.strategy = "hybrid_shard";
                     config.fsdp.hybrid_optimizer = "global";
                     config.mesh.dcn = 2;
                   }},
        Resumption{"replicas",
                   [](config::Config& config) {
                     config.fsdp.strategy = "hybrid_shard";
                     config.mesh.dcn = 2;
                   }}),
    [](const auto& info) { return info.param.name; });

TEST_F(TrainerTest, RefusesToResumeWithOtherDataUnlessTold) {
  for (const char* name : {"train.bin", "validation.bin"}) {
    SCOPED_TRACE(name);
    config_.data.allow_changed = false;
    config_.training.steps = 6;
    fs::remove_all(folder_ / "out");
    train(2, config_);
    const std::string original = util::read_file(folder_ / name);
    std::string changed = original;
    std::swap(changed[0], changed[2]);  // two tokens
    util::write_file_atomically(folder_ / name, changed);
    config_.training.steps = 8;
    EXPECT_EQ(failure(2, config_, concat("\"", name, "\", has ")), ErrorKind::kData);
    config_.data.allow_changed = true;
    EXPECT_EQ(train(2, config_).step, 8);
    util::write_file_atomically(folder_ / name, original);
  }
}

TEST_F(TrainerTest, AFailedLastSaveFailsTheRunAtItsEndOnly) {
  config_.checkpoint.interval_steps = 2;
  config_.checkpoint.save_at_end = false;
  config_.training.steps = 7;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Trainer trainer(config_, borrowed(communicator), {});
    std::optional<testing::BlockedFolder> blocked;
    if (communicator.rank() == 0) blocked.emplace(folder_ / "out");
    communicator.barrier({.unit = "test"});
    try {
      trainer.run();
      ADD_FAILURE() << "expected an error";
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_NE(std::string(error.what()).find("step 6 could not be saved"), std::string::npos)
          << error.what();
    }
  });
  EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "loss").size(), 7u);
}

TEST_F(TrainerTest, ASaveOfTheLastStepThatFailsDoesNotSayThatTrainingGoesOn) {
  config_.checkpoint.interval_steps = 2;
  config_.training.steps = 4;
  util::set_log_level(util::LogLevel::kWarning);
  for (const bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    config_.checkpoint.asynchronous = asynchronous;
    std::mutex mutex;
    std::string warnings;
    util::set_log_sink([&](util::LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex);
      warnings.append(line).append("\n");
    });
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      Trainer trainer(config_, borrowed(communicator), {});
      std::optional<testing::BlockedFolder> blocked;
      if (communicator.rank() == 0) blocked.emplace(folder_ / "out");
      communicator.barrier({.unit = "test"});
      EXPECT_THROW(trainer.run(), util::Error);
    });
    util::set_log_sink({});
    EXPECT_NE(warnings.find("the checkpoint of step 2 could not be saved"), std::string::npos) << warnings;
    EXPECT_NE(warnings.find("training continues"), std::string::npos) << warnings;
    EXPECT_EQ(warnings.find("training continues"), warnings.rfind("training continues")) << warnings;
    EXPECT_EQ(warnings.find("the checkpoint of step 4"), std::string::npos) << warnings;
  }
}

TEST_F(TrainerTest, ADivergedRunFinishesTheSaveUnderWay) {
  config_.optimizer.lr = 1e30;
  config_.training.max_grad_norm = 0;
  config_.training.steps = 20;
  config_.checkpoint.interval_steps = 1;
  config_.checkpoint.asynchronous = true;
  EXPECT_EQ(failure(2, config_, "diverged at step"), ErrorKind::kDiverged);
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
  expect_near(values_of(folder_ / "out/metrics.jsonl", "loss"), whole);
}

TEST_F(TrainerTest, EveryOptimizerResumesAtAnotherWorldSizeAndLayout) {
  const config::Config config = config_;
  for (const char* optimizer : {"muon", "lamb", "adafactor", "adagrad", "adadelta", "adamax"}) {
    SCOPED_TRACE(optimizer);
    fs::remove_all(folder_ / "out");
    config_ = config;
    config_.optimizer.name = optimizer;
    if (config_.optimizer.name == "muon") config_.optimizer.momentum = 0.95;
    config_.data.micro_batch_size = 6;
    config_.checkpoint.interval_steps = 3;
    train(1, config_);
    auto whole = values_of(folder_ / "out/metrics.jsonl", "loss");
    fs::remove_all(folder_ / "out/step-00000006");
    config_.data.micro_batch_size = 2;
    config_.fsdp.layout = "per_parameter";
    train(3, config_);
    expect_near(values_of(folder_ / "out/metrics.jsonl", "loss"), whole);
  }
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
  EXPECT_EQ(failure(1, config_, "already contains step-00000006"), ErrorKind::kUsage);
}

TEST_F(TrainerTest, ADivergedRunSaysSoAndKeepsTheLastGoodCheckpoint) {
  config_.optimizer.lr = 1e30;
  config_.training.max_grad_norm = 0;
  config_.training.steps = 20;
  config_.checkpoint.interval_steps = 1;
  EXPECT_EQ(failure(2, config_, "diverged at step"), ErrorKind::kDiverged);
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
