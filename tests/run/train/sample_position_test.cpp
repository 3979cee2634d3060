#include "run/train/sample_position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "state/manifest/folders.h"
#include "state/manifest/manifest.h"
#include "support/checkpoint_fixtures.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using nlohmann::json;
using testing::error_of;
using ::testing::HasSubstr;

/// The record of a run over files of `tokens` tokens.
json sampling(int64_t length, bool shuffle, int64_t tokens = 6401) {
  return {{"dataset", "token_files"},
          {"sequence_length", length},
          {"max_tokens", 0},
          {"documents", "join"},
          {"document_separator", {}},
          {"train_on", "all"},
          {"shuffle", shuffle},
          {"train_weights", json::array()},
          {"train", {}},
          {"seed", 1},
          {"samples_per_epoch", (tokens - 1) / length},
          {"tokens", tokens}};
}

json training(const json& sampling, int64_t samples_seen) {
  return {{"samples_seen", samples_seen}, {"seed", 1}, {"sampling", sampling}};
}

ResumedPosition resumed(const json& before, int64_t samples_seen, const json& now, bool may_differ = false) {
  return resumed_position(training(before, samples_seen), now, may_differ, "step-8");
}

TEST(ResumedPosition, StaysWhereNothingHasChanged) {
  const ResumedPosition position = resumed(sampling(64, true), 30, sampling(64, true));
  EXPECT_EQ(position.samples_seen, 30);
  EXPECT_EQ(position.note, "");
}

TEST(ResumedPosition, CountsTheSameTokensInRowsOfAnotherLength) {
  const ResumedPosition shorter = resumed(sampling(64, false), 30, sampling(32, false));
  EXPECT_EQ(shorter.samples_seen, 60);
  EXPECT_TRUE(shorter.is_exact);
  EXPECT_THAT(shorter.note, HasSubstr("data.sequence_length was 64 and is 32"));
  EXPECT_EQ(resumed(sampling(64, false), 130, sampling(128, false)).samples_seen, 50 + 15)
      << "an epoch of 100 rows is now one of 50";
  EXPECT_EQ(resumed(sampling(64, true), 200, sampling(48, true)).samples_seen, 2 * 133) << "between epochs";
  EXPECT_EQ(resumed(sampling(64, true), 0, sampling(48, true)).samples_seen, 0);
}

TEST(ResumedPosition, IsRefusedWhereItWouldRepeatOrSkipSamples) {
  for (const json& now : {sampling(32, true), sampling(64, false)}) {
    const auto [kind, text] = error_of([&] { resumed(sampling(64, true), 30, now); });
    EXPECT_EQ(kind, ErrorKind::kUsage);
    EXPECT_THAT(text, HasSubstr("data.allow_changed=true"));
  }
  EXPECT_THAT(error_of([&] { resumed(sampling(64, false), 31, sampling(128, false)); }).second,
              HasSubstr("data.sequence_length was 64 and is 128"));
}

TEST(ResumedPosition, IsRefusedWithSamplesThatAreDefinedOtherwise) {
  const std::vector<std::pair<const char*, json>> changes = {
      {"dataset", "mine"}, {"documents", "mask"},           {"document_separator", 3}, {"train_on", "last"},
      {"seed", 2},         {"train_weights", {0.25, 0.75}}, {"train", {"a", "b"}},     {"max_tokens", 512}};
  for (const auto& [name, value] : changes) {
    SCOPED_TRACE(name);
    json now = sampling(64, true);
    now[name] = value;
    const auto [kind, text] = error_of([&] { resumed(sampling(64, true), 30, now); });
    EXPECT_EQ(kind, ErrorKind::kUsage);
    EXPECT_THAT(text, HasSubstr(std::string(".") + name + " was "));
    EXPECT_THAT(resumed(sampling(64, true), 30, now, /*may_differ=*/true).note, HasSubstr(name));
  }
}

TEST(ResumedPosition, IsAfterTheSamePartOfAnEpochWhereToldToGoOn) {
  const ResumedPosition position = resumed(sampling(64, true), 150, sampling(32, true), /*may_differ=*/true);
  EXPECT_EQ(position.samples_seen, 300);
  EXPECT_FALSE(position.is_exact);
  EXPECT_THAT(position.note, HasSubstr("some samples are read again and some never"));
  json mask = sampling(64, true);
  mask["documents"] = "mask";
  const ResumedPosition same_rows = resumed(sampling(64, true), 150, mask, /*may_differ=*/true);
  EXPECT_EQ(same_rows.samples_seen, 150);
  EXPECT_TRUE(same_rows.is_exact);
}

TEST(ResumedPosition, OfACheckpointWithoutARecordGoesByItsCounts) {
  const json old = {{"samples_seen", 8}, {"tokens_seen", 8 * 64}, {"seed", 1}};
  EXPECT_EQ(resumed_position(old, sampling(64, true), false, "step-8").samples_seen, 8);
  EXPECT_THAT(error_of([&] { resumed_position(old, sampling(32, true), false, "step-8"); }).second,
              HasSubstr("data.sequence_length was 64 and is 32"));
  json other = old;
  other["seed"] = 2;
  EXPECT_THAT(error_of([&] { resumed_position(other, sampling(64, true), false, "step-8"); }).second,
              HasSubstr("run.seed was 2 and is 1"));
  const json imported = {{"samples_seen", 8}, {"tokens_seen", 99}};
  EXPECT_EQ(resumed_position(imported, sampling(64, true), false, "step-8").samples_seen, 8);
}

class SamplePosition : public TrainerTest {
 protected:
  /// Positions of the run's newest checkpoint.
  int64_t samples_seen() {
    const auto newest = checkpoint::find_checkpoints(folder_ / "out").complete.back().folder;
    return checkpoint::read_manifest(newest).training.at("samples_seen").get<int64_t>();
  }
};

TEST_F(SamplePosition, OfARunIsRefusedWithEachOtherSetting) {
  config_.training.steps = 2;
  train(1, config_);
  config_.training.steps = 4;
  const std::vector<std::pair<const char*, std::function<void(config::Config&)>>> changes = {
      {"data.sequence_length", [](auto& config) { config.data.sequence_length = 16; }},
      {"data.shuffle", [](auto& config) { config.data.shuffle = false; }},
      {"data.documents",
       [](auto& config) {
         config.data.documents = "mask";
         config.data.document_separator = 3;
       }},
      {"data.train_weights", [](auto& config) { config.data.train_weights = {1}; }},
      {"run.seed", [](auto& config) { config.run.seed = 77; }}};
  for (const auto& [key, change] : changes) {
    SCOPED_TRACE(key);
    config::Config changed = config_;
    change(changed);
    EXPECT_EQ(failure(1, changed, concat(key, " was ")), ErrorKind::kUsage);
  }
  EXPECT_EQ(train(1, config_).step, 4);
}

TEST_F(SamplePosition, CountsEpochsInRowsOfTheNewLength) {
  config_.data.shuffle = false;
  config_.data.sequence_length = 16;
  config_.training.steps = 4;
  train(1, config_);
  EXPECT_EQ(samples_seen(), 8);
  config_.data.sequence_length = 8;
  config_.training.epochs = 1;
  EXPECT_EQ(train(1, config_).step, 4 + (249 - 16) / 2) << "249 rows an epoch, of which 16 are read";
}

TEST_F(SamplePosition, GoesOnWhereToldTo) {
  config_.training.steps = 2;
  train(1, config_);
  config_.training.steps = 4;
  config_.data.sequence_length = 16;
  config_.data.allow_changed = true;
  EXPECT_EQ(train(1, config_).step, 4);
  EXPECT_EQ(samples_seen(), 2 + 4) << "4 of 249 rows are as near to 2 of 124 as can be";
}

}  // namespace
}  // namespace fsdp::train
