#include "setup/config/global_batch.h"

#include <gtest/gtest.h>

#include "setup/config/config_text.h"
#include "setup/config/load.h"
#include "setup/config/print.h"

namespace fsdp::config {
namespace {

Config batch_of(int64_t samples, int64_t rows) {
  return parse_config(kTrain, "c.toml",
                      {"training.global_batch_size=" + std::to_string(samples),
                       "data.micro_batch_size=" + std::to_string(rows)});
}

std::string refusal(Config config, int64_t world_size) {
  return usage_error_of([&] { resolve_batch(config, world_size); });
}

TEST(GlobalBatch, IsTheSameOnAnyNumberOfRanks) {
  const std::pair<int64_t, int64_t> micro_steps_of_ranks[] = {{1, 16}, {2, 8}, {8, 2}, {16, 1}};
  for (const auto& [ranks, micro_batches] : micro_steps_of_ranks) {
    Config config = batch_of(64, 4);
    EXPECT_EQ(config.training.gradient_accumulation_steps, 0);
    resolve_batch(config, ranks);
    EXPECT_EQ(config.training.gradient_accumulation_steps, micro_batches);
    EXPECT_EQ(samples_per_step(config, ranks), 64);
  }
  Config without = parse_config(kTrain, "c.toml", {"training.gradient_accumulation_steps=3"});
  resolve_batch(without, 7);
  EXPECT_EQ(without.training.gradient_accumulation_steps, 3);
}

TEST(GlobalBatch, ThatMicroBatchesDoNotMakeIsRefusedWithTheNearestOnes) {
  EXPECT_EQ(refusal(batch_of(64, 4), 3),
            "training.global_batch_size must be a multiple of 3 ranks * 4 "
            "(data.micro_batch_size) = 12, but is 64 = 5 * 12 + 4; set it to 60 or 72");
  EXPECT_EQ(refusal(batch_of(64, 5), 8),
            "training.global_batch_size must be a multiple of 8 ranks * 5 "
            "(data.micro_batch_size) = 40, but is 64 = 1 * 40 + 24; set it to 40 or 80, or "
            "data.micro_batch_size = 4");
  EXPECT_EQ(refusal(batch_of(6, 4), 2),
            "training.global_batch_size must be a multiple of 2 ranks * 4 "
            "(data.micro_batch_size) = 8, but is 6 = 0 * 8 + 6; set it to 8, or "
            "data.micro_batch_size = 3");
}

TEST(GlobalBatch, AgreesWithMicroStepsThatAreGiven) {
  Config config = batch_of(64, 4);
  config.training.gradient_accumulation_steps = 8;
  resolve_batch(config, 2);
  EXPECT_EQ(config.training.gradient_accumulation_steps, 8);
  EXPECT_EQ(
      refusal(config, 4),
      "training.gradient_accumulation_steps must be 4, because training.global_batch_size = 64 takes that "
      "many micro-batches of 4 ranks * 4 (data.micro_batch_size), but is 8; leave one of "
      "the two out, or set it to 0");
}

TEST(GlobalBatch, IsPrintedSoThatItServesAnyNumberOfRanks) {
  const Config config = batch_of(64, 4);
  const Config read = parse_config(to_toml(config), "printed.toml");
  EXPECT_EQ(differing_keys(config, read), std::vector<std::string>());
  EXPECT_EQ(read.training.gradient_accumulation_steps, 0);
}

TEST(GlobalBatch, CountsBatchesWhereTheyAreMadeByTokens) {
  Config config = parse_config(kTrain, "c.toml",
                               {"training.global_batch_size=12", "data.max_tokens=1000",
                                "data.documents=split", "data.document_separator=0"});
  EXPECT_EQ(
      refusal(config, 5),
      "training.global_batch_size must be a multiple of 5 ranks = 5, but is 12 = 2 * 5 + 2; set it to 10 or 15");
  resolve_batch(config, 4);
  EXPECT_EQ(config.training.gradient_accumulation_steps, 3);
  EXPECT_EQ(samples_per_step(config, 4), 12);
  plan_largest_batches(config);
  EXPECT_EQ(config.data.micro_batch_size, 4) << "4 rows of 256 tokens hold 1000";
  EXPECT_EQ(config.data.max_tokens, 0);
  EXPECT_EQ(config.training.gradient_accumulation_steps, 3);
}

TEST(GlobalBatch, CountsTheRowsOfAContextGroupOnce) {
  Config config;
  config.mesh.context = 4;
  config.data.micro_batch_size = 2;
  config.training.global_batch_size = 16;
  config.training.gradient_accumulation_steps = 0;
  EXPECT_EQ(row_ranks(config, 8), 2);
  resolve_batch(config, 8);
  EXPECT_EQ(config.training.gradient_accumulation_steps, 4);
  EXPECT_EQ(samples_per_step(config, 8), 16);
  config.training.global_batch_size = 15;
  config.training.gradient_accumulation_steps = 0;
  EXPECT_NE(usage_error_of([&] {
              resolve_batch(config, 8);
            }).find("must be a multiple of 2 ranks of mesh.dcn x mesh.data * 2 (data.micro_batch_size) = 4"),
            std::string::npos);
}

TEST(GlobalBatch, IsDividedIntoPowersOfTwoWhereResultsAreThoseOfAnyNumberOfRanks) {
  Config config = batch_of(48, 12);
  config.training.reproducible = Reproducible::kWorldSize;
  resolve_batch(config, 2);
  EXPECT_EQ(config.data.micro_batch_size, 4);
  EXPECT_EQ(config.training.gradient_accumulation_steps, 6);
  EXPECT_EQ(samples_per_step(config, 2), 48);
}

}  // namespace
}  // namespace fsdp::config
