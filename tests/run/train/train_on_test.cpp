// data.train_on: prompts' tokens are read and carry no gradient.

#include "data/tokens/token_writer.h"
#include "support/checkpoint_contents.h"
#include "support/late_targets.h"
#include "support/log_lines.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using data::TokenPart;

class TrainOnTest : public TrainerTest {
 protected:
  /// Conversations of which the last token of the file, a target that is no input of any sample, is a
  /// prompt's.
  void write_conversations(int64_t last_token) {
    constexpr int64_t kSamples = 40;
    data::TokenWriter writer(folder_ / "chats.bin", {.has_turns = true});
    std::vector<int64_t> ids;
    std::vector<TokenPart> parts;
    for (int64_t i = 0; i < kSamples * config_.data.sequence_length; ++i) {
      ids.push_back(testing::test_token(i, config_.model.vocab_size));
      parts.push_back(i % 11 == 0  ? TokenPart::kDocumentStart
                      : i % 11 < 6 ? TokenPart::kContext
                                   : TokenPart::kLastTurn);
    }
    ids.push_back(last_token);
    parts.push_back(TokenPart::kContext);
    writer.append(ids, parts);
    writer.finish();
    writer.commit();
  }

  /// Losses of training and validation, which read all of the file.
  std::vector<double> losses(data::TrainOn train_on, int64_t last_token) {
    write_conversations(last_token);
    config_.data.train = config_.data.validation = {folder_ / "chats.bin"};
    config_.data.train_on = train_on;
    config_.data.documents = data::DocumentTreatment::kMask;
    config_.data.shuffle = false;
    config_.training.steps = 10;  // an epoch on 2 ranks
    config_.evaluation.interval_steps = 10;
    config_.checkpoint.resume = "never";
    std::filesystem::remove_all(config_.run.output_dir);
    train(2, config_);
    const auto metrics = std::filesystem::path(config_.run.output_dir) / "metrics.jsonl";
    std::vector<double> values = testing::values_of(metrics, "loss");
    for (const char* key : {"grad_norm", "validation_loss"}) {
      for (const double value : testing::values_of(metrics, key)) values.push_back(value);
    }
    return values;
  }
};

TEST_F(TrainOnTest, ChangingAMaskedTargetChangesNothing) {
  const auto before = losses(data::TrainOn::kAssistant, 1);
  EXPECT_GE(before.size(), 21u);
  EXPECT_EQ(losses(data::TrainOn::kAssistant, 2), before);
  EXPECT_NE(losses(data::TrainOn::kAll, 1), losses(data::TrainOn::kAll, 2));
}

/// One conversation that is longer than a row, whose answer is in the last rows.
class LongConversationTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    write("late.bin", 40, 20);
    write("none.bin", 39, 39, 1);  // the assistant's only token is no target of a whole sample
    config_.data.train = config_.data.validation = {folder_ / "late.bin"};
    config_.data.train_on = data::TrainOn::kAssistant;
    config_.data.shuffle = false;
    config_.optimizer.weight_decay = 0.1;
    config_.training.steps = 10;  // of 4 samples; the first 5 have no targets
    config_.checkpoint.interval_steps = 1;
    config_.checkpoint.keep_last = 0;
    config_.logging.interval_steps = 1;
  }

  void write(const std::string& name, int64_t samples, int64_t without, int64_t behind = 0) {
    testing::write_late_targets(folder_ / name, samples, without, config_.data.sequence_length,
                                config_.model.vocab_size, behind);
  }

  std::filesystem::path step(int64_t step) const {
    return folder_ / concat("out/step-000000", step < 10 ? "0" : "", step);
  }

  void expect_skips() {
    const auto lines = testing::metrics_with(folder_ / "out/metrics.jsonl", "lr");
    ASSERT_EQ(lines.size(), 10u);
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].at("loss").is_null(), i < 5) << i;
      EXPECT_EQ(lines[i].at("skipped_steps"), std::min<size_t>(i + 1, 5)) << i;
      // What was not computed makes no step look fast. With data.documents = join all rows are full.
      EXPECT_EQ(lines[i].at("tokens"), i < 5 ? 0 : (i - 4) * 4 * 8) << i;
    }
    const auto first = testing::contents_of(step(1)), fifth = testing::contents_of(step(5));
    ASSERT_EQ(first.size(), fifth.size());  // weights and moments
    for (const auto& [name, tensor] : first) EXPECT_TRUE(at::equal(tensor, fifth.at(name))) << name;
    const auto manifest = nlohmann::json::parse(util::read_file(step(10) / "manifest.json"));
    EXPECT_EQ(manifest.at("training").at("optimizer_steps"), 5);
    EXPECT_EQ(manifest.at("training").at("steps_without_targets"), 5);
  }
};

TEST_F(LongConversationTest, StepsWithoutTargetsUpdateNothingAndAreReported) {
  config_.logging.csv = config_.logging.tensorboard = true;
  util::set_log_level(util::LogLevel::kInfo);
  RunSummary summary;
  const std::string log = testing::log_lines([&] { summary = train(2, config_); });
  for (
      const char* line :
      {"1 conversations, the longest 321 tokens; 1 are divided among rows of 8 tokens, and 20 of 40 rows have "
       "no target that counts",
       "data.documents = split and data.sequence_length = 320 keeps every conversation whole",
       "step 1 was skipped: none of its targets counts (1 such step so far)",
       "step 4 was skipped: none of its targets counts (4 such steps so far)"}) {
    EXPECT_NE(log.find(line), std::string::npos) << line << "\n" << log;
  }
  EXPECT_EQ(log.find("step 3 was skipped"), std::string::npos) << log;
  expect_skips();
  EXPECT_TRUE(std::isfinite(*summary.loss));
  EXPECT_TRUE(std::isfinite(*summary.validation_loss));
}

TEST_F(LongConversationTest, StepsWithoutTargetsUpdateNothingOnAnyNumberOfRanks) {
  config_.training.reproducible = config::Reproducible::kWorldSize;
  config_.training.global_batch_size = 4;
  config_.training.gradient_accumulation_steps = 0;
  config_.data.micro_batch_size = 1;
  train(1, config_);
  expect_skips();
  std::filesystem::rename(folder_ / "out", folder_ / "alone");
  train(4, config_);
  expect_skips();
  testing::expect_equal_checkpoints(folder_ / "alone/step-00000010", step(10));
}

TEST_F(LongConversationTest, TheNumberOfSkippedStepsContinuesWithTheRun) {
  config_.training.steps = 3;
  train(2, config_);
  config_.training.steps = 10;
  config_.lr_scheduler.name = "constant";
  train(2, config_);
  EXPECT_EQ(testing::metrics_with(folder_ / "out/metrics.jsonl", "skipped_steps").back().at("skipped_steps"),
            5);
}

TEST_F(LongConversationTest, RefusesDataInWhichNoRowHasATarget) {
  config_.data.validation.clear();
  config_.data.train = {folder_ / "none.bin"};
  EXPECT_EQ(failure(2, config_, "data.train: expected rows with targets that count"), ErrorKind::kData);
}

TEST_F(LongConversationTest, RefusesValidationWithoutTargetsBeforeTheFirstStep) {
  config_.evaluation.max_samples = 20;
  EXPECT_EQ(failure(2, config_, "data.validation: expected rows with targets that count"), ErrorKind::kData);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/metrics.jsonl"));
}

TEST_F(LongConversationTest, AnEvaluationWithoutTargetsIsAnErrorOfTheData) {
  train(1, config_);
  config_.evaluation.max_samples = 20;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    try {
      evaluate(config_, testing::borrowed(communicator), step(10));
      ADD_FAILURE() << "went on";
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_NE(std::string(error.what()).find("found none in 20 samples"), std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace fsdp::train
