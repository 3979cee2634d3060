#include "run/train/sample_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/util/error.h"
#include "base/util/log.h"
#include "run/train/trainer.h"
#include "shard/engine/fully_shard.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"
#include "tools/generate/generate.h"

namespace fsdp::train {
namespace {

using testing::borrowed;
using ::testing::HasSubstr;
using testing::values_of;

class SampleTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.logging.sample_every = 2;
    config_.logging.sample_prompt = "\x01\x02\x03";
    config_.logging.sample_tokens = 10;
  }
  void TearDown() override { util::set_log_sink({}); }

  /// Losses of a run in `output`; its samples go to samples_.
  std::vector<double> train(int world_size, const std::string& output, config::Config config) {
    samples_.clear();
    std::mutex mutex;
    util::set_log_sink([&](util::LogLevel, std::string_view line) {
      std::lock_guard lock(mutex);
      if (line.starts_with("sample at step ")) samples_.emplace_back(line);
    });
    config.run.output_dir = folder_ / output;
    comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
      Trainer(config, borrowed(communicator), {}).run();
    });
    util::set_log_sink({});
    return values_of(folder_ / output / "metrics.jsonl", "loss");
  }

  void expect_refused(const std::string& part) {
    try {
      SampleText text(config_);
      FAIL() << "expected an error with " << part;
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
  std::vector<std::string> samples_;
};

TEST_F(SampleTextTest, IsTheTextOfTheWholeModelAtAnyWorldSize) {
  auto whole = testing::make_initialized(config_.model);
  const std::vector<int64_t> ids =
      generate::generate(*whole, config_.model, {1, 2, 3},
                         {.max_new_tokens = 10, .seed = static_cast<uint64_t>(config_.run.seed)})
          .front()
          .ids;
  std::string expected = "\x01\x02\x03";
  for (int64_t id : ids) expected.push_back(static_cast<char>(id));
  const SampleText text(config_);
  for (int world : {1, 2, 3}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      auto model = testing::make_initialized(config_.model);
      auto engine = shard::fully_shard(*model, config_.fsdp, borrowed(communicator));
      EXPECT_EQ(text.of(*model, communicator), expected) << world;
      EXPECT_EQ(engine->live_unsharded_bytes(), 0);
      engine->require_rest("the test");
    });
  }
}

TEST_F(SampleTextTest, LeavesTrainingBitForBitAsItIs) {
  struct Variant {
    std::string name;
    int world_size;
    std::function<void(config::Config&)> change;
  };
  const std::vector<Variant> variants = {
      {"plain", 2, [](config::Config&) {}},
      {"alone", 1, [](config::Config&) {}},
      {"gpt2", 2, [](config::Config& config) { config.model = testing::tiny_options("gpt2"); }},
      {"per_parameter", 2, [](config::Config& config) { config.fsdp.layout = "per_parameter"; }},
      {"no_shard", 2, [](config::Config& config) { config.fsdp.strategy = "no_shard"; }},
      {"grad_op", 3, [](config::Config& config) { config.fsdp.strategy = "shard_grad_op"; }},
      {"explicit", 2, [](config::Config& config) { config.fsdp.forward_prefetch = "explicit"; }},
      {"bf16", 2, [](config::Config& config) { config.mixed_precision.param_dtype = "bfloat16"; }},
      {"recomputed", 2, [](config::Config& config) { config.activation_checkpointing.mode = "full"; }},
      {"offloaded", 2, [](config::Config& config) { config.fsdp.cpu_offload = true; }},
      {"accumulated", 2,
       [](config::Config& config) {
         config.training.gradient_accumulation_steps = 2;
         config.training.no_sync = true;
       }},
  };
  for (const Variant& variant : variants) {
    config::Config with = config_;
    variant.change(with);
    config::Config without = with;
    without.logging.sample_every = 0;
    const auto expected = train(variant.world_size, variant.name + "_without", without);
    EXPECT_TRUE(samples_.empty());
    EXPECT_EQ(train(variant.world_size, variant.name + "_with", with), expected) << variant.name;
    // Steps 2, 4 and 6, said once.
    ASSERT_EQ(samples_.size(), 3u) << variant.name;
    EXPECT_THAT(samples_[0], HasSubstr("sample at step 2:\n"));
  }
}

TEST_F(SampleTextTest, ANewTextNeedsNoPrompt) {
  config_.logging.sample_prompt = "";
  EXPECT_NO_THROW(SampleText{config_});  // behind a line end
}

TEST_F(SampleTextTest, RefusesWhatCannotBeSampled) {
  config_.logging.sample_tokens = 14;
  expect_refused("but have 14 + 3; shorten logging.sample_prompt or reduce logging.sample_tokens");
  config_.logging.sample_prompt = "a";
  expect_refused("logging.sample_prompt must have tokens of bytes below model.vocab_size = 17, but has 97");
  config_.data.tokenizer = "/nowhere/tokenizer.json";
  expect_refused("/nowhere/tokenizer.json");
}

}  // namespace
}  // namespace fsdp::train
