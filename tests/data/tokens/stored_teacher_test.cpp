#include "data/tokens/stored_teacher.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "base/util/file.h"
#include "data/stored_teacher_fixtures.h"
#include "data/token_fixtures.h"
#include "data/tokens/sample_reader.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

constexpr int64_t kTeacherSamples = 5, kIdsOfTeacher = 256;

/// A file of five samples of four tokens, with two tokens of a teacher for each.
class StoredTeacherFile : public ::testing::Test {
 protected:
  void SetUp() override { store_teacher(files(), options_, kTeacherSamples); }

  TokenFiles files() const { return TokenFiles({path_}); }
  std::string teacher_path() const { return path_ + ".teacher"; }
  StoredTeacher open(const DataOptions& options, std::optional<int64_t> separator = std::nullopt) const {
    return {files(), stored_teacher_key(files(), options, separator), kTeacherSamples};
  }
  /// Opening with these options is an error of the data with this text, and how to mend it.
  void expect_refusal(const std::string& text, const DataOptions& options,
                      std::optional<int64_t> separator = std::nullopt) const {
    expect_error(ErrorKind::kData,
                 {teacher_path(), text, "; compute it with fsdp-train reference-log-probs CONFIG"},
                 [&] { open(options, separator); });
  }
  void replace_bytes(int64_t at, const std::string& bytes) {
    std::string content = util::read_file(teacher_path());
    content.replace(static_cast<size_t>(at), bytes.size(), bytes);
    folder_.write("a.teacher", content);
  }
  int64_t first_record() const {
    return static_cast<int64_t>(util::read_file(teacher_path()).find('\n')) + 1;
  }
  /// Reading sample 2, into whose third record `record` is written, is an error with these texts.
  void expect_bad_record(const TeacherRecord& record, const std::vector<std::string>& texts) {
    std::string bytes(sizeof(record), '\0');
    std::memcpy(bytes.data(), &record, sizeof(record));
    replace_bytes(first_record() + (2 * 8 + 2) * 8, bytes);
    const StoredTeacher teacher = open(options_);
    std::vector<int64_t> ids;
    std::vector<float> log_probs;
    teacher.read(1, kIdsOfTeacher, ids, log_probs);
    expect_error(ErrorKind::kData, texts, [&] { teacher.read(2, kIdsOfTeacher, ids, log_probs); });
  }

  TemporaryFolder folder_;
  std::string path_ = write_tokens(folder_, "a", counting(21));
  DataOptions options_ = options();

 private:
  static DataOptions options() {
    DataOptions options;
    options.sequence_length = 4;
    options.teacher = {.top_k = 2, .temperature = 1.5};
    return options;
  }
};

TEST_F(StoredTeacherFile, GivesWhatWasWrittenSampleBySample) {
  const StoredTeacher teacher = open(options_);
  std::vector<int64_t> ids;
  std::vector<float> log_probs;
  for (int64_t sample : {4, 0, 2}) {
    teacher.read(sample, kIdsOfTeacher, ids, log_probs);
    ASSERT_EQ(ids.size(), 8U);
    ASSERT_EQ(log_probs.size(), 8U);
    for (size_t i = 0; i < 8; ++i) {
      const TeacherRecord record =
          teacher_record(sample, static_cast<int64_t>(i) / 2, static_cast<int64_t>(i) % 2);
      EXPECT_EQ(ids[i], record.id);
      EXPECT_EQ(log_probs[i], record.log_prob);
    }
  }
}

TEST_F(StoredTeacherFile, TakesEightBytesARecordBehindALineForPeople) {
  const std::string content = util::read_file(teacher_path());
  const auto key = nlohmann::json::parse(content.substr(0, content.find('\n')));
  EXPECT_EQ(key["model"], "a teacher");
  EXPECT_EQ(key["top_k"], 2);
  EXPECT_EQ(key["temperature"], 1.5);
  EXPECT_EQ(static_cast<int64_t>(content.size()), first_record() + kTeacherSamples * 4 * 2 * 8);
}

TEST_F(StoredTeacherFile, IsAskedForByItsKeyIfItIsMissing) {
  std::filesystem::remove(teacher_path());
  expect_refusal("distillation.teacher = \"stored\" needs the file", options_);
}

TEST_F(StoredTeacherFile, IsOfOneDataSetAlone) {
  write_tokens(folder_, "a", counting(22));
  expect_refusal("is of other data", options_);
  std::vector<uint16_t> tokens = counting(21);
  tokens[9] = 77;
  write_tokens(folder_, "a", tokens);
  expect_refusal("is of other data", options_);
  write_tokens(folder_, "a", counting(21));
  open(options_);
}

TEST_F(StoredTeacherFile, IsOfOneDivisionIntoSamplesAndOneTemperatureAlone) {
  const auto refused = [&](const std::string& text, const auto& change) {
    DataOptions other = options_;
    change(other);
    expect_refusal(text, other, /*separator=*/7);
  };
  refused("is for top_k = 2, but the run has 3", [](DataOptions& o) { o.teacher.top_k = 3; });
  refused("is for temperature = 1.5, but the run has 1.0", [](DataOptions& o) { o.teacher.temperature = 1; });
  refused("is for sequence_length = 4, but the run has 5", [](DataOptions& o) { o.sequence_length = 5; });
  refused("is for documents = \"join\", but the run has \"mask\"",
          [](DataOptions& o) { o.documents = DocumentTreatment::kMask; });

  // The separator matters where documents do.
  open(options_, /*separator=*/7);
  DataOptions masked = options_;
  masked.documents = DocumentTreatment::kMask;
  store_teacher(files(), masked, kTeacherSamples, /*separator=*/7);
  open(masked, 7);
  expect_refusal("is for document_separator = 7, but the run has 8", masked, 8);
}

TEST_F(StoredTeacherFile, IsRefusedIfItsLineIsDamaged) {
  replace_bytes(0, "x");
  expect_refusal("does not begin with the line that describes it", options_);
  folder_.write("a.teacher", std::string(4096, 'x'));
  expect_refusal("does not begin with the line that describes it", options_);
  folder_.write("a.teacher", "");
  expect_refusal("does not begin with the line that describes it", options_);
  folder_.write("a.teacher", "{\"format\": \"log-probabilities of a reference, version 1\"}\n");
  expect_refusal("does not begin with the line that describes it", options_);
  folder_.write("a.teacher", "{\"format\": \"likeliest tokens of a teacher, version 1\"}\n");
  expect_refusal("is of other data", options_);
}

TEST_F(StoredTeacherFile, IsRefusedIfItsSizeIsNotThatOfItsSamples) {
  const std::string content = util::read_file(teacher_path());
  const std::string bytes = std::to_string(content.size());
  folder_.write("a.teacher", content.substr(0, content.size() - 8));
  expect_refusal("must have " + bytes + " bytes, but has " + std::to_string(content.size() - 8), options_);
  folder_.write("a.teacher", content + "12345678");
  expect_refusal("must have " + bytes + " bytes, but has " + std::to_string(content.size() + 8), options_);
}

TEST_F(StoredTeacherFile, IsRefusedWhereARecordIsNoTokenAndItsLogProbability) {
  expect_bad_record({.id = 256, .log_prob = -1},
                    {"has a record of sample 2 with the token 256", "the log-probability -1"});
  expect_bad_record({.id = 3, .log_prob = 0.5F}, {"sample 2", "the token 3", "0.5"});
  expect_bad_record({.id = 3, .log_prob = std::numeric_limits<float>::quiet_NaN()}, {"sample 2", "nan"});
}

TEST_F(StoredTeacherFile, IsRefusedIfItBecomesShorterWhileARunReadsIt) {
  const StoredTeacher teacher = open(options_);
  std::filesystem::resize_file(teacher_path(), static_cast<uintmax_t>(first_record() + 2 * 64 + 8));
  std::vector<int64_t> ids;
  std::vector<float> log_probs;
  teacher.read(1, kIdsOfTeacher, ids, log_probs);
  expect_error(ErrorKind::kData, {teacher_path(), "has become shorter since it was opened"},
               [&] { teacher.read(2, kIdsOfTeacher, ids, log_probs); });
}

TEST_F(StoredTeacherFile, IsReadWithTheSamplesOfAReader) {
  const SampleReader reader({path_}, options_, kIdsOfTeacher);
  std::vector<int64_t> inputs(4), targets(4);
  const SampleReader::Row row = reader.read(3, inputs.data(), targets.data());
  ASSERT_EQ(row.teacher_ids.size(), 8U);
  EXPECT_EQ(row.teacher_ids[5], teacher_record(3, 2, 1).id);
  EXPECT_EQ(row.teacher_log_probs[5], teacher_record(3, 2, 1).log_prob);
  DataOptions without = options_;
  without.teacher = {};
  EXPECT_TRUE(SampleReader({path_}, without, kIdsOfTeacher)
                  .read(3, inputs.data(), targets.data())
                  .teacher_ids.empty());
}

}  // namespace
}  // namespace fsdp::data
