// Whole runs of models with experts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/file.h"
#include "run/train/evaluate.h"
#include "support/build_model.h"
#include "support/mesh_runs.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

class ExpertsRun : public MeshRuns {
 protected:
  ExpertsRun() {
    config_.model = testing::family_options("mixtral");
    config_.fsdp.min_num_params = 250;  // experts, and what else a block has
    config_.training.steps = 5;
  }
};

TEST_F(ExpertsRun, CutsSequencesOverRanks) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    config_.model = testing::family_options(family);
    config_.model.router_aux_loss_coef = 0;  // ranks would balance the tokens of their own parts
    train(1, on({.dcn = 1, .data = 1}, "one"));
    train(4, on({.dcn = 1, .data = 2, .context = 2}, "cut"));
    expect_near("loss", 1e-6);
    expect_near("validation_loss", 1e-6);
    fs::remove_all(folder_ / "one");
    fs::remove_all(folder_ / "cut");
  }
}

TEST_F(ExpertsRun, BalancesInTrainingAlone) {
  config_.optimizer.lr = 0;
  train(2, on({.dcn = 1, .data = 2}, "one"));
  config_.model.router_aux_loss_coef = 1;
  train(2, on({.dcn = 1, .data = 2}, "cut"));
  expect_near("validation_loss", 0);
  EXPECT_GT(metric("cut", "loss").front(), metric("one", "loss").front() + 1);
}

TEST_F(ExpertsRun, ResumesOnOtherNumbersOfRanks) {
  config_.training.global_batch_size = 4;
  config_.training.gradient_accumulation_steps = 0;
  config_.data.micro_batch_size = 1;
  config_.training.steps = 6;
  config_.checkpoint.interval_steps = 2;
  config_.run.output_dir = folder_ / "out";
  train(2, config_);
  const std::vector<double> whole = metric("out", "loss");
  const auto resume_after = [&](int step, int ranks) {
    for (int later = step + 2; later <= 6; later += 2) {
      fs::remove_all(folder_ / concat("out/step-0000000", later));
    }
    train(ranks, config_);
    TrainerTest::expect_near(metric("out", "loss"), whole);
  };
  resume_after(2, 1);
  resume_after(4, 4);
}

TEST_F(ExpertsRun, TrainsAdaptersBesideExpertsInFewBits) {
  config_.lora.rank = 2;
  config_.lora.targets = {"*.w1", "*q_proj"};
  config_.model.router_aux_loss_coef = 0;  // ranks would balance the tokens of their own rows
  for (const auto& [bits, layout] :
       {std::pair("none", "per_parameter"), std::pair("nf4", "flat"), std::pair("int8", "per_parameter")}) {
    config_.lora.quantize = bits;
    config_.fsdp.layout = layout;
    train(1, on({.dcn = 1, .data = 1}, "one"));
    train(2, on({.dcn = 1, .data = 2}, "cut"));
    expect_near("loss", 1e-6);
    fs::remove_all(folder_ / "one");
    fs::remove_all(folder_ / "cut");
  }
}

TEST_F(ExpertsRun, IsRefusedWithLayersThatRanksShare) {
  EXPECT_EQ(
      failure(2, on({.dcn = 1, .data = 1, .model = 2}, "refused"),
              "mesh.model must be 1 with this model of architecture mixtral, because each of its experts is "
              "computed by one process; give the processes to mesh.data"),
      ErrorKind::kUsage);
}

TEST_F(ExpertsRun, MayBeThoseOfTheSpmdFront) {
  train(2, on({.dcn = 1, .data = 2}, "one"));
  config_.fsdp.front = "spmd";
  train(2, on({.dcn = 1, .data = 2}, "cut"));
  expect_near("loss", 1e-6);
}

}  // namespace
}  // namespace fsdp::train
