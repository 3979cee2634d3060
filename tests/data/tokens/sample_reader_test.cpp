#include "data/tokens/sample_reader.h"

#include "data/token_fixtures.h"
#include "data/tokens/token_writer.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

constexpr int64_t kLength = 4, kEnd = 99;

DataOptions options_of(const std::string& documents, int64_t separator = kEnd) {
  DataOptions options;
  options.sequence_length = kLength;
  options.documents = documents;
  options.document_separator = separator;
  return options;
}

struct Sample {
  std::vector<int64_t> inputs, targets, starts;
  int64_t counted = 0;
};

std::vector<Sample> all_samples(const SampleReader& reader) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < reader.num_samples(); ++i) {
    Sample& sample = samples.emplace_back();
    sample.inputs.resize(kLength);
    sample.targets.resize(kLength);
    SampleReader::Row row = reader.read(i, sample.inputs.data(), sample.targets.data());
    sample.starts = row.document_starts;
    sample.counted = row.counted;
  }
  return samples;
}

/// Documents of 3, 7, 1 and 2 tokens, each with its separator at the end.
const std::vector<uint16_t> kTokens = {1, 2, 99, 3, 4, 5, 6, 7, 8, 99, 99, 9, 99};

TEST(SampleReader, MaskKeepsSamplesAndTellsWhereDocumentsBegin) {
  TemporaryFolder folder;
  const auto samples =
      all_samples(SampleReader({write_tokens(folder, "a", kTokens)}, options_of("mask"), 100));
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].inputs, (std::vector<int64_t>{1, 2, 99, 3}));
  EXPECT_EQ(samples[0].targets, (std::vector<int64_t>{2, 99, kIgnoredTarget, 4}));
  EXPECT_EQ(samples[0].starts, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(samples[0].counted, 3);
  EXPECT_EQ(samples[1].starts, std::vector<int64_t>{0});
  EXPECT_EQ(samples[1].counted, 4);
  // Two documents begin in this sample, and one right after it.
  EXPECT_EQ(samples[2].inputs, (std::vector<int64_t>{8, 99, 99, 9}));
  EXPECT_EQ(samples[2].targets, (std::vector<int64_t>{99, kIgnoredTarget, kIgnoredTarget, 99}));
  EXPECT_EQ(samples[2].starts, (std::vector<int64_t>{0, 2, 3}));
}

TEST(SampleReader, SplitGivesEachDocumentSamplesOfItsOwn) {
  TemporaryFolder folder;
  const auto samples =
      all_samples(SampleReader({write_tokens(folder, "a", kTokens)}, options_of("split"), 100));
  ASSERT_EQ(samples.size(), 4u);  // 1 + 2 + 0 + 1
  EXPECT_EQ(samples[0].inputs, (std::vector<int64_t>{1, 2, 0, 0}));
  EXPECT_EQ(samples[0].targets, (std::vector<int64_t>{2, 99, kIgnoredTarget, kIgnoredTarget}));
  EXPECT_EQ(samples[1].inputs, (std::vector<int64_t>{3, 4, 5, 6}));
  EXPECT_EQ(samples[1].targets, (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(samples[2].inputs, (std::vector<int64_t>{7, 8, 0, 0}));
  EXPECT_EQ(samples[2].targets, (std::vector<int64_t>{8, 99, kIgnoredTarget, kIgnoredTarget}));
  EXPECT_EQ(samples[3].targets, (std::vector<int64_t>{99, kIgnoredTarget, kIgnoredTarget, kIgnoredTarget}));
  EXPECT_EQ(samples[2].counted, 2);
  EXPECT_TRUE(samples[2].starts.empty());
}

TEST(SampleReader, AFileBeginsADocument) {
  TemporaryFolder folder;
  const SampleReader reader({write_tokens(folder, "a", {1, 2, 3}), write_tokens(folder, "b", {4, 5, 6})},
                            options_of("mask"), 100);
  const auto samples = all_samples(reader);
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].starts, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(samples[0].targets[2], kIgnoredTarget);
}

TEST(SampleReader, JoinTakesNoNotice) {
  TemporaryFolder folder;
  const auto samples =
      all_samples(SampleReader({write_tokens(folder, "a", kTokens)}, options_of("join", -1), 100));
  ASSERT_EQ(samples.size(), 3u);
  for (const Sample& sample : samples) {
    EXPECT_EQ(sample.counted, kLength);
    EXPECT_TRUE(sample.starts.empty());
  }
}

TEST(SampleReader, TakesDocumentsFromTheIndexOfAFile) {
  TemporaryFolder folder;
  for (TokenFormat format : {TokenFormat::kMegatron, TokenFormat::kFairseq}) {
    const std::string path = (folder / (format == TokenFormat::kMegatron ? "m.bin" : "f.bin")).string();
    TokenWriter writer(path, {.format = format, .vocab_size = 100});
    const std::vector<std::vector<int64_t>> documents = {{1, 2}, {3, 4, 5, 6, 7, 8}, {9, 10}};
    for (const auto& document : documents) {
      writer.append(document);
      writer.end_document();
    }
    writer.finish();
    writer.commit();
    const auto masked = all_samples(SampleReader({path}, options_of("mask", -1), 100));
    ASSERT_EQ(masked.size(), 2u);
    EXPECT_EQ(masked[0].starts, (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(masked[1].targets, (std::vector<int64_t>{6, 7, 8, kIgnoredTarget}));
    EXPECT_EQ(SampleReader({path}, options_of("split", -1), 100).num_samples(), 1 + 2 + 1);
  }
}

TEST(SampleReader, AsksForASeparatorWhereNothingElseTells) {
  TemporaryFolder folder;
  const std::string path = write_tokens(folder, "a", kTokens);
  expect_error(ErrorKind::kUsage, {"data.document_separator", path},
               [&] { SampleReader({path}, options_of("mask", -1), 100); });
}

/// Two conversations of 6 and 7 tokens; the last one has a single turn.
std::string write_two_conversations(const TemporaryFolder& folder) {
  using enum TokenPart;
  TokenWriter writer(folder / "chats.bin", {.has_turns = true});
  writer.append({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13},
                {kDocumentStart, kContext, kAssistant, kContext, kLastTurn, kLastTurn, kDocumentStart,
                 kContext, kContext, kLastTurn, kLastTurn, kLastTurn, kContext});
  writer.finish();
  writer.commit();
  return folder / "chats.bin";
}

std::vector<Sample> conversations(const TemporaryFolder& folder, const std::string& documents,
                                  const std::string& train_on) {
  DataOptions options = options_of(documents, /*separator=*/-1);
  options.train_on = train_on;
  return all_samples(SampleReader({write_two_conversations(folder)}, options, 100));
}

constexpr int64_t kNo = kIgnoredTarget;

TEST(SampleReader, OfConversationsTrainsOnWhatIsAsked) {
  const TemporaryFolder folder;
  auto samples = conversations(folder, "join", "all");
  EXPECT_EQ(samples[0].targets, (std::vector<int64_t>{2, 3, 4, 5}));
  samples = conversations(folder, "join", "assistant");
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].inputs, (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(samples[0].targets, (std::vector<int64_t>{kNo, 3, kNo, 5}));
  EXPECT_EQ(samples[0].counted, 2);
  EXPECT_EQ(samples[1].targets, (std::vector<int64_t>{6, kNo, kNo, kNo}));
  EXPECT_EQ(samples[2].targets, (std::vector<int64_t>{10, 11, 12, kNo}));
  samples = conversations(folder, "join", "last");
  EXPECT_EQ(samples[0].targets, (std::vector<int64_t>{kNo, kNo, kNo, 5}));
  EXPECT_EQ(samples[0].counted, 1);
}

TEST(SampleReader, FindsConversationsWithoutASeparator) {
  const TemporaryFolder folder;
  auto samples = conversations(folder, "mask", "assistant");
  EXPECT_EQ(samples[1].inputs, (std::vector<int64_t>{5, 6, 7, 8}));
  EXPECT_EQ(samples[1].starts, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(samples[1].targets, (std::vector<int64_t>{6, kNo, kNo, kNo}));
  EXPECT_EQ(samples[1].counted, 1);
  // All of a conversation but its first token, which the one before does not predict.
  samples = conversations(folder, "mask", "all");
  EXPECT_EQ(samples[1].targets, (std::vector<int64_t>{6, kNo, 8, 9}));
  samples = conversations(folder, "split", "assistant");
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[1].inputs, (std::vector<int64_t>{5, 0, 0, 0}));
  EXPECT_EQ(samples[1].targets, (std::vector<int64_t>{6, kNo, kNo, kNo}));
  EXPECT_EQ(samples[2].targets, (std::vector<int64_t>{kNo, kNo, 10, 11}));
}

TEST(SampleReader, CountsConversationsThatAreDividedAndRowsWithoutTargets) {
  const TemporaryFolder folder;
  TokenWriter writer(folder / "chats.bin", {.has_turns = true});
  // 4, 9 and 3 tokens, of which the last ones are the assistant's.
  for (const auto& [context, assistant] : {std::pair{2, 1}, {6, 2}, {1, 1}}) {
    std::vector<TokenPart> parts = {TokenPart::kDocumentStart};
    parts.insert(parts.end(), static_cast<size_t>(context), TokenPart::kContext);
    parts.insert(parts.end(), static_cast<size_t>(assistant), TokenPart::kLastTurn);
    writer.append(std::vector<int64_t>(parts.size(), 1), parts);
  }
  writer.finish();
  writer.commit();
  DataOptions options;
  options.sequence_length = 4;
  options.train_on = TrainOn::kAssistant;
  const auto survey = [&] {
    const SampleReader reader({folder / "chats.bin"}, options, 16);
    return *reader.survey(reader.num_samples());
  };
  options.documents = DocumentTreatment::kSplit;  // rows of predictions: 3; 4 and 4; 2
  RowSurvey found = survey();
  EXPECT_EQ(found.rows, 4);
  EXPECT_EQ(found.without_targets, 1);
  EXPECT_EQ(found.conversations, 3);
  EXPECT_EQ(found.divided, 1);
  EXPECT_EQ(found.longest, 9);
  EXPECT_EQ(survey_remedy(found, options), "data.sequence_length = 8");
  options.sequence_length = 8;
  EXPECT_FALSE(survey().loses_tokens());
  options.documents = DocumentTreatment::kMask;  // one row, which ends within the second conversation
  found = survey();
  EXPECT_EQ(found.rows, 1);
  EXPECT_EQ(found.divided, 1);
  EXPECT_EQ(
      survey_text(found, options),
      "3 conversations, the longest 9 tokens; 1 are divided among rows of 8 tokens, and 0 of 1 rows have no "
      "target that counts");
  EXPECT_EQ(survey_remedy(found, options), "data.documents = split and data.sequence_length = 8");
  options.train_on = TrainOn::kAll;
  const SampleReader all({folder / "chats.bin"}, options, 16);
  EXPECT_FALSE(all.survey(1).has_value());
}

TEST(SampleReader, RefusesToTrainOnTheAssistantOfTexts) {
  const TemporaryFolder folder;
  DataOptions options = options_of("join");
  options.train_on = TrainOn::kAssistant;
  expect_error(ErrorKind::kData,
               {"data.train_on = assistant needs token files of conversations", "text.turns"},
               [&] { SampleReader({write_tokens(folder, "text", kTokens)}, options, 100); });
  TokenWriter writer(folder / "b.bin", {.has_turns = true});
  writer.append({1, 2, 3, 4, 5, 6}, std::vector<TokenPart>(6, TokenPart::kContext));
  writer.finish();
  writer.commit();
  expect_error(ErrorKind::kData, {"counts none of the 6 tokens of", "b.bin"},
               [&] { SampleReader({folder / "b.bin"}, options, 100); });
}

}  // namespace
}  // namespace fsdp::data
