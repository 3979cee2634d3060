#include "run/train/local_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "run/train/evaluate.h"
#include "shard/engine/engine.h"
#include "state/groups/learning_rate.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_contents.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using testing::borrowed;
using testing::contents_of;
using testing::values_of;
namespace fs = std::filesystem;

class LocalStepsTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    config_.fsdp.strategy = "hybrid_shard";
    config_.mesh.dcn = -1;
    config_.mesh.data = 1;
    config_.training.local_steps = 3;
    config_.data.shuffle = true;
  }

  /// The weights of a checkpoint, in double.
  std::map<std::string, at::Tensor> weights_of(const fs::path& folder) {
    std::map<std::string, at::Tensor> weights;
    for (const auto& [name, tensor] : contents_of(folder)) {
      if (name.starts_with("model/")) weights[name] = tensor.to(at::kDouble).view({-1});
    }
    return weights;
  }

  std::map<std::string, at::Tensor> trained(int world_size) {
    fs::remove_all(folder_ / "out");
    const RunSummary summary = train(world_size, config_);
    return weights_of(summary.last_checkpoint);
  }
};

void expect_near_weights(const std::map<std::string, at::Tensor>& found,
                         const std::map<std::string, at::Tensor>& expected, double error) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(at::allclose(found.at(name), tensor, error, error))
        << name << ": " << (found.at(name) - tensor).abs().max().item<double>();
  }
}

/// DiLoCo by its definition: each replica is a run on one rank that sees its own samples, and every few steps
/// the outer optimizer of PyTorch's SGD, in double, moves the weights from which all go on.
class ReferenceDiLoCo {
 public:
  ReferenceDiLoCo(const config::Config& config, int replicas) : config_(config) {
    config_.training.local_steps = 0;
    config_.mesh = {};
    config_.fsdp.strategy = "full_shard";
    comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
      const comm::Mesh mesh(config_.mesh, borrowed(communicator));
      std::vector<RunParts> parts;
      std::vector<std::unique_ptr<data::TrainLoader>> loaders;
      std::vector<std::unique_ptr<TrainStep>> steps;
      for (int replica = 0; replica < replicas; ++replica) {
        parts.push_back(build_run_parts(config_, mesh, nullptr));
        loaders.push_back(std::make_unique<data::TrainLoader>(
            config_.data, config_.model.vocab_size, static_cast<uint64_t>(config_.run.seed),
            data::Placement{.rank = replica,
                            .world_size = replicas,
                            .gradient_accumulation_steps = config_.training.gradient_accumulation_steps}));
      }
      for (size_t i = 0; i < parts.size(); ++i)
        steps.push_back(make_train_step(config_, parts[i], *loaders[i]));
      const optim::OuterOptions& outer = config.outer_optimizer;
      std::vector<at::Tensor> weights, buffers;
      for (const auto& unit : parts[0].optimizer->parameters()) {
        weights.push_back(unit.value.to(at::kDouble));
        buffers.push_back(at::zeros_like(weights.back()));
      }
      const int64_t last = config.training.steps;
      for (int64_t step = 1; step <= last; ++step) {
        for (size_t i = 0; i < parts.size(); ++i) {
          steps[i]->run({.step = step,
                         .first_global_sample = (step - 1) * loaders[i]->samples_per_step(),
                         .lr = optim::lr_at(config_.optimizer, config_.lr_scheduler, step, last)});
        }
        if (step % config.training.local_steps != 0 && step != last) continue;
        for (size_t unit = 0; unit < weights.size(); ++unit) {
          at::Tensor delta = at::zeros_like(weights[unit]);
          for (RunParts& each : parts) {
            delta += (weights[unit] - each.optimizer->parameters()[unit].value) / replicas;
          }
          buffers[unit] = buffers[unit] * outer.momentum + delta;
          const bool nesterov = outer.name == optim::OuterRule::kNesterov;
          weights[unit] -= outer.lr * (nesterov ? delta + outer.momentum * buffers[unit] : buffers[unit]);
          for (RunParts& each : parts)
            at::Tensor(each.optimizer->parameters()[unit].value).copy_(weights[unit]);
        }
      }
      for (const shard::Segment& segment : parts[0].engine->segments()) {
        weights_["model/" + segment.name] =
            weights[segment.unit].narrow(0, segment.shard_offset, segment.numel()).clone();
      }
    });
  }

  const std::map<std::string, at::Tensor>& weights() const { return weights_; }

 private:
  config::Config config_;
  std::map<std::string, at::Tensor> weights_;
};

TEST_F(LocalStepsTest, AreThoseOfDiLoCo) {
  config_.lr_scheduler.name = "cosine";
  config_.training.gradient_accumulation_steps = 2;
  for (const int64_t steps : {6, 8}) {  // the last exchange of 8 steps follows 2 local ones
    SCOPED_TRACE(steps);
    config_.training.steps = steps;
    expect_near_weights(trained(2), ReferenceDiLoCo(config_, 2).weights(), 2e-6);
  }
  config_.outer_optimizer.name = "sgd";
  config_.outer_optimizer.lr = 0.4;
  expect_near_weights(trained(3), ReferenceDiLoCo(config_, 3).weights(), 2e-6);
}

TEST_F(LocalStepsTest, OfReplicasOfSeveralRanksAreThoseOfOneRankEach) {
  config_.mesh.data = 2;
  config_.data.micro_batch_size = 1;
  const auto sharded = trained(4);
  config_.mesh.data = 1;
  config_.data.micro_batch_size = 2;
  expect_near_weights(sharded, trained(2), 1e-5);
}

TEST_F(LocalStepsTest, OfOneStepAndPlainDescentAreDataParallel) {
  config_.optimizer.name = "sgd";
  config_.training.max_grad_norm = 0;
  config_.training.local_steps = 1;
  config_.outer_optimizer.name = "sgd";
  config_.outer_optimizer.lr = 1;
  config_.outer_optimizer.momentum = 0;
  const auto local = trained(2);
  config_.training.local_steps = 0;
  expect_near_weights(local, trained(2), 1e-6);
}

TEST_F(LocalStepsTest, OnlyExchangesCommunicate) {
  config_.training.steps = 7;
  config_.training.local_steps = 3;
  config_.logging.trace_communication = true;
  config_.logging.interval_steps = 1;
  config_.data.validation.clear();
  config_.outer_optimizer.reduce_dtype = "bfloat16";
  train(2, config_);
  std::map<int64_t, int64_t> bytes;
  std::istringstream lines(util::read_file(folder_ / "out/trace.rank1.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.at("op") != "buffer" && event.at("step") > 0)
      bytes[event.at("step")] += event.at("bytes").get<int64_t>();
  }
  int64_t parameters = 0;
  for (const auto& [name, tensor] : weights_of(folder_ / "out/step-00000007")) parameters += tensor.numel();
  for (const int64_t step : {1, 2, 4, 5}) EXPECT_FALSE(bytes.contains(step)) << step;
  for (const int64_t step : {3, 6}) {  // and a few numbers beside the weights
    EXPECT_GE(bytes[step], 2 * parameters) << step;
    EXPECT_LT(bytes[step], 2 * parameters + 200) << step;
  }
}

TEST_F(LocalStepsTest, ReportTheMeanLossOfAllReplicas) {
  config_.training.steps = 6;
  config_.logging.interval_steps = 2;  // exchanges are reported in the next line
  config_.logging.csv = true;
  train(2, config_);
  const auto losses = testing::metrics_with(folder_ / "out/metrics.jsonl", "replicas_loss");
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].at("step"), 4);
  EXPECT_EQ(losses[1].at("step"), 6);
  config_.training.local_steps = 0;
  fs::remove_all(folder_ / "out");
  config_.logging.interval_steps = 1;
  train(2, config_);
  const auto parallel = values_of(folder_ / "out/metrics.jsonl", "loss");
  EXPECT_NEAR(losses[0].at("replicas_loss"), (parallel[0] + parallel[1] + parallel[2]) / 3, 0.05);
}

TEST_F(LocalStepsTest, ValidateTheOuterWeights) {
  config_.evaluation.interval_steps = 2;
  config_.checkpoint.interval_steps = 1;
  config_.checkpoint.keep_last = 0;
  for (const bool streams : {false, true}) {
    fs::remove_all(folder_ / "out");
    config_.outer_optimizer.fragments = config_.outer_optimizer.fragment_delay = streams ? 2 : 1;
    if (!streams) config_.outer_optimizer.fragment_delay = 0;
    train(2, config_);
    const auto losses = values_of(folder_ / "out/metrics.jsonl", "validation_loss");
    ASSERT_EQ(losses.size(), 3u);
    for (size_t i = 0; i < losses.size(); ++i) {
      const fs::path saved =
          folder_ / "out" / checkpoint::step_folder_name(static_cast<int64_t>(2 * (i + 1)));
      comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
        config::Config config = config_;
        config.model.init_from = saved;
        EXPECT_NEAR(evaluate(config, borrowed(communicator), saved).validation->loss, losses[i], 1e-6) << i;
      });
    }
    // The inner weights after step 2 are others.
    const auto contents = contents_of(folder_ / "out/step-00000002");
    EXPECT_FALSE(contents.at("model/model.norm.weight")
                     .equal(contents.at("optimizer/local_weights/model.norm.weight")));
  }
}

TEST_F(LocalStepsTest, StopWhenReplicasMeet) {
  config_.training.steps = 9;
  const RunSummary whole = train(2, config_);
  fs::rename(whole.last_checkpoint, folder_ / "whole");
  fs::remove_all(folder_ / "out");
  const RunSummary stopped = train_until(2, config_, 1);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.step, 3);
  EXPECT_EQ(train(2, config_).step, 9);
  testing::expect_equal_checkpoints(folder_ / "whole", folder_ / "out/step-00000009");
}

TEST_F(LocalStepsTest, EndOnAllReplicasTogetherIfOneDiverges) {
  config_.optimizer.lr = 1e30;
  config_.training.steps = 9;
  EXPECT_EQ(failure(2, config_, "replica 0 of 2: training diverged at step"), ErrorKind::kDiverged);
}

struct LocalResumption {
  const char* name;
  int world_size;
  std::function<void(config::Config&)> change;
};

class ResumedLocalSteps : public LocalStepsTest, public ::testing::WithParamInterface<LocalResumption> {};

TEST_P(ResumedLocalSteps, AreBitwiseThoseThatNeverStopped) {
  config_.lr_scheduler.name = "cosine";
  config_.checkpoint.interval_steps = 4;
  config_.training.steps = 10;
  config_.logging.interval_steps = 1;
  GetParam().change(config_);
  const int world_size = GetParam().world_size;
  train(world_size, config_);
  const auto whole = values_of(folder_ / "out/metrics.jsonl", "loss");
  ASSERT_EQ(whole.size(), 10u);
  fs::rename(folder_ / "out/step-00000010", folder_ / "whole");
  fs::remove_all(folder_ / "out/step-00000008");
  train(world_size, config_);  // from step 4
  EXPECT_EQ(values_of(folder_ / "out/metrics.jsonl", "loss"), whole);
  testing::expect_equal_checkpoints(folder_ / "whole", folder_ / "out/step-00000010");
}

INSTANTIATE_TEST_SUITE_P(All, ResumedLocalSteps,
                         ::testing::Values(LocalResumption{"at_an_exchange", 2,
                                                           [](config::Config& config) {
                                                             config.training.local_steps = 2;
                                                           }},
                                           LocalResumption{"between_exchanges", 2, [](config::Config&) {}},
                                           LocalResumption{"beside_an_exchange", 2,
                                                           [](config::Config& config) {
                                                             config.training.local_steps = 4;
                                                             config.outer_optimizer.fragments = 2;
                                                             config.outer_optimizer.fragment_delay = 1;
                                                             config.outer_optimizer.reduce_dtype = "int8";
                                                           }},
                                           LocalResumption{"asynchronous_bfloat16", 2,
                                                           [](config::Config& config) {
                                                             config.checkpoint.asynchronous = true;
                                                             config.training.local_steps = 4;
                                                             config.outer_optimizer.fragment_delay = 2;
                                                             config.outer_optimizer.reduce_dtype = "bfloat16";
                                                             config.mixed_precision.param_dtype = "bfloat16";
                                                           }},
                                           LocalResumption{"full_without_momentum", 2,
                                                           [](config::Config& config) {
                                                             config.checkpoint.kind = "full";
                                                             config.outer_optimizer.momentum = 0;
                                                           }},
                                           LocalResumption{"replicas_of_two_per_parameter", 4,
                                                           [](config::Config& config) {
                                                             config.mesh.data = 2;
                                                             config.fsdp.layout = "per_parameter";
                                                           }},
                                           LocalResumption{"three_replicas_muon", 3,
                                                           [](config::Config& config) {
                                                             config.optimizer.name = "muon";
                                                             config.optimizer.momentum = 0.95;
                                                           }},
                                           LocalResumption{"adafactor_replicas_of_two", 4,
                                                           [](config::Config& config) {
                                                             config.mesh.data = 2;
                                                             config.optimizer.name = "adafactor";
                                                           }},
                                           LocalResumption{"float16_with_loss_scales", 2,
                                                           [](config::Config& config) {
                                                             config.mixed_precision.param_dtype = "float16";
                                                             config.mixed_precision.reduce_dtype = "float16";
                                                             config.loss_scaler.init_scale = 1e9;
                                                             config.loss_scaler.growth_interval = 2;
                                                           }}),
                         [](const auto& info) { return info.param.name; });

TEST_F(LocalStepsTest, GoOnWithOtherNumbersOfReplicasAndWithoutLocalSteps) {
  config_.checkpoint.keep_last = 0;
  config_.training.steps = 4;
  config_.checkpoint.interval_steps = 4;
  config_.training.global_batch_size = 12;
  config_.training.gradient_accumulation_steps = 0;
  train(2, config_);
  const double loss = values_of(folder_ / "out/metrics.jsonl", "loss").back();
  config_.training.steps = 6;
  for (const auto& [world_size, local_steps] : {std::pair{3, 3}, {1, 3}, {2, 0}}) {
    SCOPED_TRACE(world_size);
    fs::remove_all(folder_ / "out/step-00000006");
    config_.training.local_steps = local_steps;
    EXPECT_EQ(train(world_size, config_).step, 6);
    EXPECT_LT(values_of(folder_ / "out/metrics.jsonl", "loss").back(), loss + 0.2);
  }
  // From a checkpoint without local steps: all replicas go on with its state.
  config_.training.local_steps = 3;
  config_.training.steps = 9;
  EXPECT_EQ(train(2, config_).step, 9);
  EXPECT_TRUE(
      contents_of(folder_ / "out/step-00000009").contains("optimizer/exp_avg.replica1/model.norm.weight"));
}

TEST_F(LocalStepsTest, RefuseMoreFragmentsThanUnits) {
  config_.training.local_steps = 100;
  config_.outer_optimizer.fragments = 50;
  EXPECT_EQ(failure(2, config_, "outer_optimizer.fragments must be at most "), ErrorKind::kUsage);
}

}  // namespace
}  // namespace fsdp::train
