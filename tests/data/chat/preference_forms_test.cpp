// Files of preferences in the forms of public data sets: the tokens that TRL's trainers give for them, and
// the tokens that are learnt (tests/data/chat/make_preferences.py).

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "base/util/file.h"
#include "data/chat/chat_source.h"
#include "data/chat/preference_encoder.h"
#include "data/chat_fixtures.h"
#include "data/texts/tokenize.h"
#include "data/token_fixtures.h"
#include "data/tokenize_fixtures.h"
#include "data/tokens/token_turns.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

const OrderedJson& preferences() {
  static const auto parsed = OrderedJson::parse(util::read_file(kChatFolder + "preferences.json"));
  return parsed;
}

std::vector<std::string> preference_files() {
  std::vector<std::string> names;
  for (const auto& [name, file] : preferences().items()) names.push_back(name);
  return names;
}

class PreferenceForms : public ::testing::TestWithParam<std::string> {};

TEST_P(PreferenceForms, GiveTheTokensAndAnswersOfTrl) {
  const OrderedJson& file = preferences()[GetParam()];
  const std::string path = kChatFolder + "preferences/" + GetParam(), tokenizer_name = kChatFolder + "qwen2";
  const auto named = file["template"].get<std::string>();
  const bool is_preset = named == "chatml" || named == kNoChatTemplate;
  const TemporaryFolder folder;
  TokenizeOptions options = tokenize_options(folder, {path});
  options.tokenizer = tokenizer_name;
  options.threads = 2;
  options.make_row_encoder = [&](const Tokenizer& tokenizer) {
    return make_preference_encoder(
        {.chat_template = is_preset ? named : published_template(named), .threads = 2}, tokenizer,
        tokenizer_name);
  };
  const TokenizeReport report = tokenize(options);
  EXPECT_EQ(report.note, concat("recognised ", file["form"].get<std::string>(), " in ", path));
  ASSERT_EQ(report.documents, static_cast<int64_t>(file["answers"].size()));

  const std::vector<int64_t> ids = tokenized_ids(options.output);
  std::vector<TokenPart> parts(ids.size());
  TokenTurns(turns_path(options.output), options.output, static_cast<int64_t>(ids.size()))
      .read(0, static_cast<int64_t>(ids.size()), parts.data());
  const auto tokenizer = make_tokenizer(tokenizer_name);
  size_t begin = 0;
  for (const OrderedJson& answer : file["answers"]) {
    const auto expected = answer["ids"].get<std::vector<int64_t>>();
    const auto first = ids.begin() + static_cast<int64_t>(begin);
    ASSERT_LE(begin + expected.size(), ids.size());
    EXPECT_EQ(std::vector<int64_t>(first, first + static_cast<int64_t>(expected.size())), expected);
    const TokenPart of_answer = answer["preferred"] == true ? TokenPart::kLastTurn : TokenPart::kAssistant;
    std::string learnt;
    for (size_t i = begin; i < begin + expected.size(); ++i) {
      EXPECT_EQ(parts[i] == TokenPart::kDocumentStart, i == begin);
      learnt += parts[i] == of_answer ? '1' : '0';
      EXPECT_TRUE(parts[i] == of_answer || parts[i] == TokenPart::kContext || i == begin);
    }
    EXPECT_EQ(learnt, answer["mask"].get<std::string>());
    EXPECT_EQ(learnt.find('1'), answer["begin"].get<size_t>());
    // TRL also learns the line end behind the end of the last turn.
    const std::vector<int64_t> behind(expected.begin() + static_cast<int64_t>(learnt.rfind('1')) + 1,
                                      expected.end());
    EXPECT_EQ(tokenizer->decode(behind), named == kNoChatTemplate ? "" : "\n");
    begin += expected.size();
  }
  EXPECT_EQ(begin, ids.size());
}

TEST(PreferenceFormFigures, AreThoseOfTheTrlAtHand) {
  const char* python = std::getenv("FSDP_TEST_TRL_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "set FSDP_TEST_TRL_PYTHON to a Python that has TRL";
  const TemporaryFolder folder;
  const std::string command = concat("'", python, "' '", kChatFolder, "make_preferences.py' '",
                                     published_template(""), "' '", folder.path().string(), "' 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_EQ(OrderedJson::parse(folder.read("preferences.json")), preferences());
}

TEST(PreferenceFormFigures, AreOfAllFiles) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kChatFolder + "preferences")) {
    found.push_back(entry.path().filename().string());
  }
  std::vector<std::string> known = preference_files();
  std::ranges::sort(found);
  std::ranges::sort(known);
  EXPECT_EQ(found, known);
  EXPECT_EQ(found.size(), 21u);
}

INSTANTIATE_TEST_SUITE_P(All, PreferenceForms, ::testing::ValuesIn(preference_files()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

}  // namespace
}  // namespace fsdp::data
