#include "data/tokens/preference_samples.h"

#include <cmath>

#include "data/preference_fixtures.h"
#include "data/token_fixtures.h"
#include "data/tokens/sample_reader.h"
#include "data/tokens/stored_reference.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

DataOptions preference_options(PreferenceRows rows, int64_t sequence_length = 10) {
  DataOptions options;
  options.sequence_length = sequence_length;
  options.preference.rows = rows;
  return options;
}

PreferenceSamples open_preferences(const std::string& path, const DataOptions& options) {
  return PreferenceSamples({path}, options, /*vocab_size=*/1000);
}

/// A sample as it was read.
struct ReadSample {
  std::vector<int64_t> inputs, targets;
  Samples::Row row;
};

ReadSample read_sample(const PreferenceSamples& samples, int64_t sample, int64_t sequence_length = 10) {
  const auto length = static_cast<size_t>(sequence_length);
  ReadSample read{.inputs = std::vector<int64_t>(length), .targets = std::vector<int64_t>(length), .row = {}};
  read.row = samples.read(sample, read.inputs.data(), read.targets.data());
  return read;
}

TEST(PreferenceSamples, APairIsTwoDocumentsOneAfterAnother) {
  const TemporaryFolder folder;
  const auto samples = open_preferences(write_answers(folder, "a.bin", two_pairs()),
                                        preference_options(PreferenceRows::kPairs));
  EXPECT_EQ(samples.num_samples(), 2);
  EXPECT_EQ(samples.num_documents(), 4);
  EXPECT_EQ(samples.num_tokens(), 19);
  EXPECT_EQ(samples.first_document(1), 2);
  EXPECT_EQ(samples.length(0), 7);
  EXPECT_EQ(samples.note(), "");

  const auto [inputs, targets, row] = read_sample(samples, 0);
  EXPECT_EQ(inputs, (std::vector<int64_t>{10, 11, 12, 13, 10, 11, 14, 0, 0, 0}));
  EXPECT_EQ(targets,
            (std::vector<int64_t>{kNoTarget, 12, 13, 3, kNoTarget, 14, 3, kNoTarget, kNoTarget, kNoTarget}));
  EXPECT_EQ(row.counted, 1) << "samples are counted, not targets";
  EXPECT_EQ(row.tokens, 7);
  EXPECT_EQ(row.document_starts, (std::vector<int64_t>{0, 4}));
  ASSERT_EQ(row.documents.size(), 2u);
  const ScoredDocument& chosen = row.documents[0];
  EXPECT_EQ(chosen.begin, 0);
  EXPECT_EQ(chosen.end, 4);
  EXPECT_TRUE(chosen.preferred);
  EXPECT_EQ(chosen.completes, (std::vector<bool>{false, true, true, true}));
  const ScoredDocument& rejected = row.documents[1];
  EXPECT_EQ(rejected.begin, 4);
  EXPECT_EQ(rejected.end, 7);
  EXPECT_FALSE(rejected.preferred);
  EXPECT_EQ(rejected.completes, (std::vector<bool>{false, true, true}));
  for (const ScoredDocument& document : row.documents) {
    EXPECT_FALSE(document.exchanged);
    EXPECT_TRUE(std::isnan(document.reference));
  }
}

TEST(PreferenceSamples, PromptsOfChosenDocumentsMayBeTargets) {
  const TemporaryFolder folder;
  DataOptions options = preference_options(PreferenceRows::kPairs);
  options.preference.prompts_count = true;
  const auto samples = open_preferences(write_answers(folder, "a.bin", two_pairs()), options);
  const auto [inputs, targets, row] = read_sample(samples, 0);
  EXPECT_EQ(targets,
            (std::vector<int64_t>{11, 12, 13, 3, kNoTarget, 14, 3, kNoTarget, kNoTarget, kNoTarget}));
  EXPECT_EQ(row.documents[0].completes, (std::vector<bool>{false, true, true, true}))
      << "a prompt counts as text, not as a part of the answer";
}

TEST(PreferenceSamples, ASingleDocumentIsFollowedByItsPromptWithTheAnswerBefore) {
  const TemporaryFolder folder;
  const std::string path = write_answers(
      folder, "a.bin", {{{10, 11}, {12, 3}, true}, {{20}, {21, 22, 3}, false}, {{30}, {31, 3}, true}});
  const auto samples = open_preferences(path, preference_options(PreferenceRows::kSingle));
  ASSERT_EQ(samples.num_samples(), 3);
  const auto of_first = read_sample(samples, 0);
  EXPECT_EQ(of_first.inputs, (std::vector<int64_t>{10, 11, 12, 10, 11, 31, 0, 0, 0, 0}))
      << "the first has the answer of the last";
  EXPECT_EQ(of_first.targets, (std::vector<int64_t>{kNoTarget, 12, 3, kNoTarget, 31, 3, kNoTarget, kNoTarget,
                                                    kNoTarget, kNoTarget}));
  EXPECT_FALSE(of_first.row.documents[0].exchanged);
  EXPECT_TRUE(of_first.row.documents[1].exchanged);
  EXPECT_EQ(of_first.row.counted, 1);
  const auto of_second = read_sample(samples, 1);
  EXPECT_EQ(of_second.inputs, (std::vector<int64_t>{20, 21, 22, 20, 12, 0, 0, 0, 0, 0}));
  EXPECT_FALSE(of_second.row.documents[0].preferred);
  EXPECT_TRUE(of_second.row.documents[1].preferred) << "as the answer that it has";
  EXPECT_EQ(samples.length(1), 5);
}

TEST(PreferenceSamples, AnswersAreExchangedWithinGroupsOfRows) {
  const TemporaryFolder folder;
  std::vector<Answer> answers;
  for (int64_t i = 0; i < 5; ++i) answers.push_back({{100 + i}, {200 + i}, i % 2 == 0});
  const std::string path = write_answers(folder, "a.bin", answers);
  const auto givers = [&](int64_t rows) {
    DataOptions options = preference_options(PreferenceRows::kSingle);
    options.preference.exchanged_rows = rows;
    const auto samples = open_preferences(path, options);
    std::vector<int64_t> found;
    for (int64_t sample = 0; sample < samples.num_samples(); ++sample) {
      const ReadSample read = read_sample(samples, sample);
      EXPECT_EQ(read.inputs[1], 100 + sample) << "the prompt stays";
      found.push_back(read.targets[1] - 200);
    }
    return found;
  };
  EXPECT_EQ(givers(0), (std::vector<int64_t>{4, 0, 1, 2, 3}));
  EXPECT_EQ(givers(2), (std::vector<int64_t>{1, 0, 3, 2, 4})) << "the last group has one row";
  EXPECT_EQ(givers(3), (std::vector<int64_t>{2, 0, 1, 4, 3}));
  EXPECT_EQ(givers(100), givers(0));
}

TEST(PreferenceSamples, BothDocumentsAreCutWhereTheRowEnds) {
  const TemporaryFolder folder;
  const auto lengths = [&](int64_t chosen, int64_t rejected, int64_t sequence_length) {
    const auto answer = [](int64_t tokens, bool preferred) {
      return Answer{{1}, std::vector<int64_t>(static_cast<size_t>(tokens - 1), 7), preferred};
    };
    const auto samples =
        open_preferences(write_answers(folder, "a.bin", {answer(chosen, true), answer(rejected, false)}),
                         preference_options(PreferenceRows::kPairs, sequence_length));
    const auto read = read_sample(samples, 0, sequence_length);
    EXPECT_EQ(samples.length(0), read.row.tokens);
    EXPECT_LE(read.row.tokens, sequence_length);
    return std::vector<int64_t>{read.row.documents[0].end, read.row.tokens - read.row.documents[0].end,
                                samples.cut()};
  };
  EXPECT_EQ(lengths(5, 4, 7), (std::vector<int64_t>{4, 3, 0})) << "both fit";
  EXPECT_EQ(lengths(5, 4, 6), (std::vector<int64_t>{3, 3, 1})) << "in halves";
  EXPECT_EQ(lengths(9, 9, 7), (std::vector<int64_t>{3, 3, 2}));
  EXPECT_EQ(lengths(10, 3, 8), (std::vector<int64_t>{6, 2, 1})) << "the longer has what the shorter leaves";
  EXPECT_EQ(lengths(3, 10, 8), (std::vector<int64_t>{2, 6, 1}));
}

TEST(PreferenceSamples, ASampleIsLeftOutWhereNothingOfAnAnswerRemains) {
  const TemporaryFolder folder;
  const std::string path = write_answers(folder, "a.bin",
                                         {{{1, 2, 3, 4}, {5, 6, 7}, true},  // cut at 4 tokens: no answer
                                          {{1, 2, 3, 4}, {8, 9, 7}, false},
                                          {{1}, {5, 6, 7, 8, 9}, true},  // cut
                                          {{1}, {2, 3}, false}});
  const auto samples = open_preferences(path, preference_options(PreferenceRows::kPairs, 6));
  EXPECT_EQ(samples.num_samples(), 1);
  EXPECT_EQ(samples.left_out(), 1);
  EXPECT_EQ(samples.first_document(0), 2);
  EXPECT_EQ(samples.note(), path +
                                ": of 2 samples 1 are left out and 1 documents are cut at "
                                "data.sequence_length = 6");
  write_answers(folder, "a.bin", {{{1, 2, 3, 4}, {5, 6, 7}, true}, {{1, 2, 3, 4}, {8, 9, 7}, false}});
  expect_error(ErrorKind::kData, {"in none of 1 samples does data.sequence_length = 6"}, [&] {
    open_samples(
        {.entries = {path}, .options = preference_options(PreferenceRows::kPairs, 6), .vocab_size = 1000});
  });
}

TEST(PreferenceSamples, RefuseFilesThatAreNoPreferences) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<std::string>& parts, const std::vector<std::string>& paths,
                           PreferenceRows rows = PreferenceRows::kPairs) {
    expect_error(ErrorKind::kData, parts, [&] { PreferenceSamples(paths, preference_options(rows), 1000); });
  };
  const Answer chosen{{10, 11}, {12, 3}, true}, rejected{{10, 11}, {14, 3}, false};
  const std::string good = write_answers(folder, "good.bin", two_pairs());
  refused({"training.objective needs token files of preferences", "text.bin has no companion text.bin.turns",
           "fsdp-data tokenize --preference"},
          {good, write_tokens(folder, "text.bin", {1, 2, 3})});
  refused({"document 2 of", "two.bin is not a rejected one", "training.objective = \"kto\""},
          {write_answers(folder, "two.bin", {chosen, chosen, rejected})});
  refused({"document 1 of", "first.bin is not a chosen one"},
          {write_answers(folder, "first.bin", {rejected, chosen})});
  refused({"document 3 of", "odd.bin is chosen and has no rejected one after it"},
          {write_answers(folder, "odd.bin", {chosen, rejected, chosen})});
  refused({"document 2 of", "two.bin is not a rejected one"}, {good, folder / "two.bin"});

  const auto written = [&](const std::string& name, const std::vector<TokenPart>& parts) {
    TokenWriter writer(folder / name, {.format = TokenFormat::kU16, .vocab_size = 1000, .has_turns = true});
    writer.append(std::vector<int64_t>(parts.size(), 7), parts);
    writer.finish();
    writer.commit();
    return (folder / name).string();
  };
  using enum TokenPart;
  for (const PreferenceRows rows : {PreferenceRows::kPairs, PreferenceRows::kSingle}) {
    refused({"document 1 of", "talk.bin", "is a conversation with several turns of the assistant"},
            {written("talk.bin", {kDocumentStart, kAssistant, kContext, kLastTurn})}, rows);
    refused({"document 1 of", "plain.bin", "is a text without a completion"},
            {written("plain.bin", {kDocumentStart, kContext, kContext})}, rows);
  }
}

TEST(PreferenceSamples, NameTheTokenThatTheVocabularyLacks) {
  const TemporaryFolder folder;
  const std::string path = write_answers(folder, "a.bin", two_pairs());
  const PreferenceSamples samples({path}, preference_options(PreferenceRows::kPairs), /*vocab_size=*/26);
  read_sample(samples, 0);
  expect_error(ErrorKind::kData, {"token 17 of " + path, "has the id 26", "model.vocab_size = 26"},
               [&] { read_sample(samples, 1); });
}

class StoredReference : public ::testing::Test {
 protected:
  DataOptions options(PreferenceRows rows, int64_t sequence_length = 10) {
    DataOptions options = preference_options(rows, sequence_length);
    options.preference.stored_reference = true;
    return options;
  }
  void write(const std::string& path, const DataOptions& options, const std::vector<double>& numbers) {
    const TokenFiles files({path});
    write_stored_reference(files, stored_reference_key(files, options.preference, options.sequence_length),
                           "models/mine", numbers);
  }
  void refused(const std::vector<std::string>& parts, const DataOptions& options) {
    expect_error(ErrorKind::kData, parts, [&] { open_preferences(path_, options); });
  }

  TemporaryFolder folder_;
  const std::string path_ = write_answers(folder_, "a.bin", two_pairs());
  const DataOptions pairs_ = options(PreferenceRows::kPairs);
  const std::string remedy_ = "compute it with fsdp-train reference-log-probs";
};

TEST_F(StoredReference, IsReadAsWritten) {
  const double third = -1.0 / 3, unused = std::nan("");
  write(path_, pairs_, {third, -2, -3e-300, unused});
  const auto samples = open_preferences(path_, pairs_);
  EXPECT_EQ(read_sample(samples, 0).row.documents[0].reference, third);
  EXPECT_EQ(read_sample(samples, 0).row.documents[1].reference, -2);
  EXPECT_EQ(read_sample(samples, 1).row.documents[0].reference, -3e-300);
  EXPECT_TRUE(std::isnan(read_sample(samples, 1).row.documents[1].reference));
  EXPECT_NE(folder_.read("a.bin.reference").find("models/mine"), std::string::npos);
}

TEST_F(StoredReference, HasTwoNumbersForASingleDocument) {
  const DataOptions single = options(PreferenceRows::kSingle);
  write(path_, single, {-1, -2, -3, -4, -5, -6, -7, -8});
  const auto samples = open_preferences(path_, single);
  for (int64_t i = 0; i < 4; ++i) {
    const auto documents = read_sample(samples, i).row.documents;
    EXPECT_EQ(documents[0].reference, static_cast<double>(-2 * i - 1));
    EXPECT_EQ(documents[1].reference, static_cast<double>(-2 * i - 2)) << "of the exchanged answer";
  }
}

TEST_F(StoredReference, IsRefusedWhereItIsMissingOrOfAnotherRun) {
  refused({"preference.reference = \"stored\" needs the file " + path_ + ".reference",
           "which does not exist; " + remedy_},
          pairs_);
  write(path_, pairs_, {-1, -2, -3, -4});
  refused({"a.bin.reference is for sequence_length = 10, but the run has 9", remedy_},
          options(PreferenceRows::kPairs, 9));
  refused({"is for rows = \"pairs\", but the run has \"single\""}, options(PreferenceRows::kSingle));
  DataOptions grouped = options(PreferenceRows::kSingle);
  write(path_, grouped, {-1, -2, -3, -4, -5, -6, -7, -8});
  grouped.preference.exchanged_rows = 2;
  refused({"is for exchanged_rows = 0, but the run has 2"}, grouped);
  write(path_, pairs_, {-1, -2, -3, -4});
  std::vector<Answer> others = two_pairs();
  others[3].completion[0] = 99;
  write_answers(folder_, "a.bin", others);
  refused({"a.bin.reference is of other data: ", remedy_}, pairs_);
}

TEST_F(StoredReference, IsRefusedWhereItIsDamaged) {
  write(path_, pairs_, {-1, -2, -3, -4});
  const std::string good = folder_.read("a.bin.reference");
  const auto damaged = [&](const std::string& content, const std::string& part) {
    folder_.write("a.bin.reference", content);
    refused({"a.bin.reference", part, remedy_}, pairs_);
  };
  for (const std::string& content : {std::string(), std::string("\n"), "x" + good, good.substr(0, 20),
                                     std::string("[]\n"), std::string("{\"format\": 7}\n")}) {
    damaged(content, "does not begin with the line that describes it");
  }
  damaged(good.substr(0, good.size() - 8), concat("must have ", good.size(), " bytes, but has "));
  damaged(good + "x", concat("must have ", good.size(), " bytes, but has ", good.size() + 1));
  folder_.write("a.bin.reference", good);
  EXPECT_EQ(open_preferences(path_, pairs_).num_samples(), 2);
}

}  // namespace
}  // namespace fsdp::data
