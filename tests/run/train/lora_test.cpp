// Runs that train adapters (lora.rank): their checkpoints, and what other programs read of them.

#include "model/nn/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run/train/evaluate.h"
#include "state/convert/hugging_face_model.h"
#include "state/convert/peft_folder.h"
#include "state/weights/weights.h"
#include "support/build_model.h"
#include "support/checkpoint_contents.h"
#include "support/safetensors_files.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using testing::values_of;
namespace fs = std::filesystem;

class LoraRun : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    config_.training.steps = 1;
    config_.run.output_dir = folder_ / "base";
    train(1, config_);
    config_.run.output_dir = folder_ / "out";
    config_.training.steps = 6;
    config_.checkpoint.interval_steps = 3;
    config_.model.init_from = folder_ / "base";
    config_.lora.rank = 3;
    config_.lora.alpha = 6;
    config_.lora.targets = {"*q_proj", "*down_proj"};
  }

  std::vector<double> losses() { return values_of(folder_ / "out/metrics.jsonl", "loss"); }
  fs::path checkpoint(int step) { return folder_ / concat("out/step-0000000", step); }

  testing::TemporaryFolder& folder() { return folder_; }
};

TEST_F(LoraRun, SavesTheAdaptersAlone) {
  config_.lora.dora = true;
  train(2, config_);
  int weights = 0;
  for (const auto& [name, tensor] : testing::contents_of(checkpoint(6))) {
    const auto adapter = nn::lora_name(name);
    EXPECT_TRUE(adapter) << name;
    weights += name.starts_with("model/");
  }
  EXPECT_EQ(weights, 3 * 2 * 3) << "A, B and the magnitudes of two layers in each of three blocks";
}

TEST_F(LoraRun, ResumesOnAnotherNumberOfRanksWithoutAChange) {
  config_.lora.dropout = 0.1;
  config_.fsdp.param_storage = "bfloat16";
  config_.training.global_batch_size = 4;
  config_.training.gradient_accumulation_steps = 0;
  train(2, config_);
  const std::vector<double> whole = losses();
  fs::remove_all(checkpoint(6));
  train(1, config_);
  expect_near(losses(), whole);
}

TEST_F(LoraRun, RefusesToResumeWithOtherAdaptersOrAnotherBase) {
  train(1, config_);
  config_.training.steps = 8;
  const auto refused = [&](const std::string& part, const auto& change) {
    config::Config other = config_;
    change(other);
    EXPECT_EQ(failure(2, other, part), ErrorKind::kCheckpoint);
  };
  refused("lora.rank must be 3", [](auto& c) { c.lora.rank = 4; });
  refused("lora.alpha must be 6", [](auto& c) { c.lora.alpha = 8; });
  refused("lora.dora must be false", [](auto& c) { c.lora.dora = true; });
  refused("lora.targets must match the 6 layers", [](auto& c) { c.lora.targets = {"*q_proj"}; });
  refused("lora.rank must be 3", [](auto& c) { c.lora.rank = 0; });
  refused("has other weights", [&](auto& c) {
    config::Config base = config_;
    base.lora = {};
    base.model.init_from.clear();
    base.run.seed = 5;
    base.run.output_dir = folder_ / "other";
    base.training.steps = 1;
    train(1, base);
    c.model.init_from = folder_ / "other";
  });
  config::Config whole = config_;
  whole.run.output_dir = folder_ / "base";
  EXPECT_EQ(failure(1, whole, "lora.rank must be 0"), ErrorKind::kCheckpoint);
}

TEST_F(LoraRun, IsReadMergedByWhateverReadsWeights) {
  for (const bool dora : {false, true}) {
    config_.lora.dora = dora;
    fs::remove_all(folder_ / "out");
    train(2, config_);
    const auto validation = values_of(folder_ / "out/metrics.jsonl", "validation_loss");
    ASSERT_FALSE(validation.empty());
    config::Config whole = config_;
    whole.lora = {};
    const double merged =
        evaluate(whole, std::make_shared<comm::SingleCommunicator>(), folder_ / "out").validation->loss;
    EXPECT_NEAR(merged, validation.back(), 1e-5 * merged);
    const double before =
        evaluate(whole, std::make_shared<comm::SingleCommunicator>(), folder_ / "base").validation->loss;
    EXPECT_GT(before, merged + 1e-3);
    const fs::path exported = folder_ / concat("merged", dora);
    checkpoint::export_model(checkpoint(6), exported, {.merge = true});
    EXPECT_NEAR(evaluate(whole, std::make_shared<comm::SingleCommunicator>(), exported).validation->loss,
                merged, 1e-6 * merged);
  }
}

TEST_F(LoraRun, StartsFromAdaptersThatWereExported) {
  config_.lora.dora = config_.lora.use_rslora = true;
  train(2, config_);
  checkpoint::export_adapter({.checkpoint_folder = checkpoint(6), .output = folder_ / "adapter"});
  const auto names = checkpoint::open_adapter(folder_ / "adapter").weights.names();
  EXPECT_THAT(names, ::testing::Contains("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
  EXPECT_THAT(names,
              ::testing::Contains("base_model.model.model.layers.2.mlp.down_proj.lora_magnitude_vector"));
  std::vector<double> first;
  for (const char* from : {"adapter", "out"}) {
    config::Config other = config_;
    other.run.output_dir = folder_ / concat("from-", from);
    other.lora.init_from = folder_ / from;
    other.training.steps = 1;
    train(1, other);
    first.push_back(values_of(fs::path(other.run.output_dir) / "metrics.jsonl", "loss").front());
  }
  EXPECT_EQ(first[0], first[1]);
  EXPECT_LT(first[0], losses().front() - 1e-3);

  const auto refused = [&](const std::string& part, const auto& change) {
    config::Config other = config_;
    other.run.output_dir = folder_ / "refused";
    other.lora.init_from = folder_ / "adapter";
    change(other);
    EXPECT_EQ(failure(2, other, part), ErrorKind::kCheckpoint);
  };
  refused("lora.rank must be 3", [](auto& c) { c.lora.rank = 2; });
  refused("missing: model.layers.0.self_attn.k_proj.lora_A.weight", [](auto& c) {
    c.lora.targets = {"*q_proj", "*k_proj", "*down_proj"};
  });
  refused("lora.init_from must be a folder of PEFT", [&](auto& c) { c.lora.init_from = folder_ / "none"; });
  // A config that does not belong to the weights beside it.
  const fs::path peft_config = folder_ / "adapter/adapter_config.json";
  nlohmann::json other_rank = nlohmann::json::parse(util::read_file(peft_config));
  other_rank["r"] = 4;
  util::write_file_atomically(peft_config, other_rank.dump());
  refused("of different shape: model.layers.0.self_attn.q_proj.lora_A.weight (",
          [](auto& c) { c.lora.rank = 4; });
}

TEST_F(LoraRun, NamesTheBaseThatIsMissingOrHasChanged) {
  train(1, config_);
  const auto message = [&] {
    try {
      checkpoint::open_weights(folder_ / "out");
    } catch (const util::Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(), "no error");
  fs::rename(folder_ / "base", folder_ / "moved");
  EXPECT_THAT(message(), ::testing::HasSubstr("need the weights of their base at"));
  config::Config base = config_;
  base.lora = {};
  base.model.init_from.clear();
  base.run.seed = 5;
  base.run.output_dir = folder_ / "base";
  base.training.steps = 1;
  train(1, base);
  EXPECT_THAT(message(), ::testing::HasSubstr("but are other weights"));
}

TEST_F(LoraRun, TrainsTheSameWhateverIsSharded) {
  config_.training.global_batch_size = 4;
  config_.training.gradient_accumulation_steps = 0;
  train(1, config_);
  const std::vector<double> whole = losses();
  const auto same = [&](const char* what, const auto& change) {
    SCOPED_TRACE(what);
    config::Config other = config_;
    change(other);
    fs::remove_all(folder_ / "out");
    train(2, other);
    expect_near(losses(), whole);
  };
  same("full_shard", [](auto&) {});
  same("kept", [](auto& c) { c.fsdp.keep_after_forward = {"*"}; });
  same("shard_grad_op", [](auto& c) { c.fsdp.strategy = "shard_grad_op"; });
  same("per_parameter", [](auto& c) { c.fsdp.layout = "per_parameter"; });
  same("recomputed", [](auto& c) { c.activation_checkpointing.mode = "full"; });
  same("selective", [](auto& c) {
    c.activation_checkpointing.mode = "selective";
    c.activation_checkpointing.memory_budget = 0.3;
  });
  same("feed-forward in ranges", [](auto& c) { c.activation_checkpointing.feed_forward_tokens = 3; });
  same("offloaded", [](auto& c) { c.fsdp.cpu_offload = c.fsdp.move_grads_to_cpu = true; });
  same("spmd", [](auto& c) { c.fsdp.front = config::Front::kSpmd; });
  same("no_sync", [](auto& c) {
    c.data.micro_batch_size = 1;
    c.training.no_sync = true;
  });
}

}  // namespace
}  // namespace fsdp::train
