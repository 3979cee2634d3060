#include "data/sample_reader.h"

#include "data/token_fixtures.h"
#include "data/token_writer.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;
using util::ErrorKind;

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

}  // namespace
}  // namespace fsdp::data
