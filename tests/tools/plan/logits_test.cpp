#include "tools/plan/logits.h"

#include <gtest/gtest.h>

#include "tools/plan/memory.h"
#include "tools/plan/plan.h"

namespace fsdp::plan {
namespace {

config::Config config_of(int64_t rows) {
  config::Config config;
  config.model.architecture = "gpt2";
  config.model.vocab_size = 50257;
  config.model.hidden_size = 64;
  config.model.intermediate_size = 128;
  config.model.num_hidden_layers = 1;
  config.model.num_attention_heads = config.model.num_key_value_heads = 2;
  config.model.max_position_embeddings = config.data.sequence_length = 1024;
  config.data.micro_batch_size = rows;
  config.mixed_precision.param_dtype = "bfloat16";
  config.training.device = "cuda";
  return config;
}

constexpr int64_t kGib = 1 << 30;

int64_t peak_of(config::Config config, int64_t logits_mib) {
  config.model.logits_mib = logits_mib;
  return device_peak(config, planned_units(config, {}), record_pass(config));
}

TEST(Logits, AreAllInMemoryWhereTheStepThenFits) {
  const config::Config config = config_of(16);
  constexpr int64_t kAll = 2 * 16 * 1024 * 50304 / (1 << 20);
  EXPECT_EQ(choose_logits_mib(config, {}, 80 * kGib), kAll);
  const auto least =
      static_cast<int64_t>(static_cast<double>(peak_of(config, kAll)) / kMemoryShareOfOneChunk);
  EXPECT_EQ(choose_logits_mib(config, {}, least + 1024), kAll);
  EXPECT_EQ(choose_logits_mib(config, {}, least - 1024), 512);
  EXPECT_GT(peak_of(config, kAll), peak_of(config, 512) + ((kAll - 512 - 100) << 20));
}

TEST(Logits, HaveTheirUsualMemoryWhereThatSufficesOrAnotherIsAskedFor) {
  EXPECT_EQ(choose_logits_mib(config_of(4), {}, 80 * kGib), 512);
  config::Config asked = config_of(16);
  asked.training.logits_mib = asked.model.logits_mib = 700;
  EXPECT_EQ(choose_logits_mib(asked, {}, 80 * kGib), 700);
}

TEST(Logits, OfACpuOrOfPartsOfTheVocabularyHaveTheirUsualMemory) {
  config::Config config = config_of(16);
  EXPECT_EQ(choose_logits_mib(config, {}, 80 * kGib, PassDevice::kCpu), 512);
  config.mesh.model = 2;
  EXPECT_EQ(choose_logits_mib(config, {.model = 2}, 80 * kGib), 512);
}

TEST(Logits, OfAPlanAreThoseOfItsMachine) {
  const config::Config config = config_of(16);
  const Plan large = make_plan(config, {.memory_gib = 80}), small = make_plan(config, {.memory_gib = 2});
  EXPECT_GT(large.memory.device_peak, small.memory.device_peak + kGib / 2);
  EXPECT_EQ(large.largest_micro_batch, make_plan(config_of(4), {.memory_gib = 80}).largest_micro_batch)
      << "does not depend on the micro-batch";
}

}  // namespace
}  // namespace fsdp::plan
