// Asynchronous saves copy the state beside the next step. Whatever is saved has the bits of a synchronous
// save.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>

#include "run/train/trainer.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

/// FSDP_INJECT_FAULT during its lifetime.
class Injected {
 public:
  explicit Injected(const std::string& faults) { ::setenv("FSDP_INJECT_FAULT", faults.c_str(), 1); }
  ~Injected() { ::unsetenv("FSDP_INJECT_FAULT"); }
};

/// The thread that copies comes too late for each save, so that the step's update has to wait for all copies.
constexpr const char* kLate = "rank=0,step=1-9,at=copy,do=sleep:0.05;rank=1,step=1-9,at=copy,do=sleep:0.05";

struct SavedRun {
  const char* name;
  std::function<void(config::Config&)> change;
};

class AsynchronousSave : public TrainerTest, public ::testing::WithParamInterface<SavedRun> {
 protected:
  /// A run that saves after each step, and its output folder.
  fs::path saved(const char* name, bool asynchronous) {
    config_.run.output_dir = folder_ / name;
    config_.checkpoint.asynchronous = asynchronous;
    train(2, config_);
    return config_.run.output_dir;
  }
};

TEST_P(AsynchronousSave, HasTheBitsOfASynchronousOne) {
  config_.training.steps = 4;
  config_.checkpoint.interval_steps = 1;
  config_.checkpoint.keep_last = 0;
  GetParam().change(config_);
  const fs::path expected = saved("synchronous", false);
  const fs::path in_time = saved("asynchronous", true);
  const Injected late(kLate);
  const fs::path too_late = saved("late", true);
  for (int64_t step = 1; step <= 4; ++step) {
    const std::string name = checkpoint::step_folder_name(step);
    testing::expect_equal_checkpoints(expected / name, in_time / name);
    testing::expect_equal_checkpoints(expected / name, too_late / name);
  }
}

void scale_loss(config::Config& config) {
  config.mixed_precision.param_dtype = config.mixed_precision.reduce_dtype = "float16";
  config.loss_scaler.init_scale = 1e9;  // overflows at first: steps without an update follow a save
  config.loss_scaler.growth_interval = 2;
}

SavedRun with_optimizer(const char* name) {
  return {name, [name](config::Config& config) {
            config.optimizer.name = name;
            if (config.optimizer.name == "muon") config.optimizer.momentum = 0.95;
          }};
}

INSTANTIATE_TEST_SUITE_P(
    All, AsynchronousSave,
    ::testing::Values(with_optimizer("adamw"), with_optimizer("adam"), with_optimizer("sgd"),
                      with_optimizer("muon"), with_optimizer("lamb"), with_optimizer("lion"),
                      with_optimizer("adafactor"), with_optimizer("adagrad"), with_optimizer("adadelta"),
                      with_optimizer("adamax"),
                      SavedRun{"averaged", [](config::Config& config) { config.optimizer.ema_decay = 0.9; }},
                      SavedRun{"states_in_bfloat16",
                               [](config::Config& config) { config.optimizer.state_dtype = "bfloat16"; }},
                      SavedRun{"states_in_int8",
                               [](config::Config& config) { config.optimizer.state_dtype = "int8"; }},
                      SavedRun{"stored_in_bfloat16",
                               [](config::Config& config) {
                                 config.fsdp.param_storage = config.mixed_precision.param_dtype = "bfloat16";
                               }},
                      SavedRun{"cpu_offload", [](config::Config& config) { config.fsdp.cpu_offload = true; }},
                      SavedRun{"updates_as_gradients_arrive",
                               [](config::Config& config) { config.training.max_grad_norm = 0; }},
                      SavedRun{"accumulation",
                               [](config::Config& config) {
                                 config.training.gradient_accumulation_steps = 3;
                                 config.training.no_sync = true;
                               }},
                      SavedRun{"reproducible",
                               [](config::Config& config) {
                                 config.training.reproducible = "world_size";
                                 config.training.global_batch_size = 4;
                                 config.training.gradient_accumulation_steps = 0;
                               }},
                      SavedRun{"replicas",
                               [](config::Config& config) {
                                 config.fsdp.strategy = "hybrid_shard";
                                 config.mesh.dcn = 2;
                               }},
                      SavedRun{"no_shard", [](config::Config& config) { config.fsdp.strategy = "no_shard"; }},
                      SavedRun{"loss_scaler", scale_loss},
                      SavedRun{"skipped_spikes",
                               [](config::Config& config) {
                                 config.training.skip_zscore = 0.01;
                                 config.training.skip_window = 2;
                                 config.training.max_skipped_steps = 100;
                               }}),
    [](const auto& info) { return info.param.name; });

TEST_F(TrainerTest, AdaptersAreSavedAsynchronouslyWithTheSameBits) {
  config_.training.steps = 1;
  config_.run.output_dir = folder_ / "base";
  train(1, config_);
  config_.model.init_from = folder_ / "base";
  config_.training.steps = 2;
  config_.lora.rank = 3;
  config_.lora.targets = {"*q_proj", "*down_proj"};
  config_.checkpoint.interval_steps = 1;
  const Injected late(kLate);
  for (const bool asynchronous : {false, true}) {
    config_.run.output_dir = folder_ / concat("adapters-", asynchronous);
    config_.checkpoint.asynchronous = asynchronous;
    train(2, config_);
  }
  for (const char* name : {"step-00000001", "step-00000002"}) {
    testing::expect_equal_checkpoints(folder_ / "adapters-0" / name, folder_ / "adapters-1" / name);
  }
}

/// Steps fail after the copy has begun and before they update anything.
TEST_F(TrainerTest, ASaveWhoseNextStepDivergesIsCompleted) {
  config_.optimizer.lr = 1e30;
  config_.training.max_grad_norm = 0;
  config_.training.steps = 20;
  config_.checkpoint.interval_steps = 1;
  config_.checkpoint.keep_last = 0;
  std::vector<std::vector<int64_t>> steps;
  const Injected late(kLate);
  for (const bool asynchronous : {false, true}) {
    config_.run.output_dir = folder_ / concat("diverged-", asynchronous);
    config_.checkpoint.asynchronous = asynchronous;
    EXPECT_EQ(failure(2, config_, "diverged at step"), ErrorKind::kDiverged);
    const auto found = checkpoint::find_checkpoints(config_.run.output_dir);
    EXPECT_TRUE(found.torn.empty());
    for (auto& of_step = steps.emplace_back(); const auto& each : found.complete)
      of_step.push_back(each.step);
  }
  EXPECT_FALSE(steps[0].empty());
  ASSERT_EQ(steps[0], steps[1]);
  for (const int64_t step : steps[0]) {
    const std::string name = checkpoint::step_folder_name(step);
    testing::expect_equal_checkpoints(folder_ / "diverged-0" / name, folder_ / "diverged-1" / name);
  }
}

}  // namespace
}  // namespace fsdp::train
