// data.train_on: prompts' tokens are read and carry no gradient.

#include "data/token_writer.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using data::TokenPart;

class TrainOnTest : public TrainerTest {
 protected:
  /// Conversations of which the last token of the file, a target that is no input of any sample, is a prompt's.
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

}  // namespace
}  // namespace fsdp::train
