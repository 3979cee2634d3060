// Files of conversations in the forms of public data sets: the tokens that transformers gives for them, and
// the tokens that TRL, axolotl and LLaMA-Factory learn (tests/data/chat/make_forms.py).

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "base/util/file.h"
#include "data/chat/chat_encoder.h"
#include "data/chat/chat_source.h"
#include "data/chat_fixtures.h"
#include "data/texts/tokenize.h"
#include "data/token_fixtures.h"
#include "data/tokenize_fixtures.h"
#include "data/tokens/token_turns.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

const OrderedJson& forms() {
  static const auto parsed = OrderedJson::parse(util::read_file(kChatFolder + "forms.json"));
  return parsed;
}

std::vector<std::string> files() {
  std::vector<std::string> names;
  for (const auto& [name, file] : forms().items()) names.push_back(name);
  return names;
}

class ChatForms : public ::testing::TestWithParam<std::string> {};

TEST_P(ChatForms, GiveTheTokensAndMasksOfTransformers) {
  const OrderedJson& file = forms()[GetParam()];
  const std::string path = kChatFolder + "forms/" + GetParam(), tokenizer_name = kChatFolder + "qwen2";
  const auto named = file["template"].get<std::string>();
  const bool is_preset = named == "chatml" || named == kNoChatTemplate;
  const TemporaryFolder folder;
  TokenizeOptions options = tokenize_options(folder, {path});
  options.tokenizer = tokenizer_name;
  options.threads = 2;
  options.make_row_encoder = [&](const Tokenizer& tokenizer) {
    return make_chat_encoder({.chat_template = is_preset ? named : published_template(named), .threads = 2},
                             tokenizer, tokenizer_name);
  };
  const TokenizeReport report = tokenize(options);
  EXPECT_EQ(report.note, concat("recognised ", file["form"].get<std::string>(), " in ", path));
  EXPECT_EQ(report.documents, static_cast<int64_t>(file["ids"].size()));

  std::vector<int64_t> ids;
  std::string mask;
  for (const OrderedJson& row : file["ids"]) ids.insert(ids.end(), row.begin(), row.end());
  for (const OrderedJson& row : file["mask"]) mask += row.get<std::string>();
  EXPECT_EQ(tokenized_ids(options.output), ids);
  std::vector<TokenPart> parts(ids.size());
  TokenTurns(turns_path(options.output), options.output, static_cast<int64_t>(ids.size()))
      .read(0, static_cast<int64_t>(ids.size()), parts.data());
  std::string learnt;
  for (const TokenPart part : parts) {
    learnt += part == TokenPart::kAssistant || part == TokenPart::kLastTurn ? '1' : '0';
  }
  EXPECT_EQ(learnt, mask);
}

TEST(ChatFormFigures, AreThoseOfTheTransformersAtHand) {
  const char* python = std::getenv("FSDP_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  const TemporaryFolder folder;
  const std::string command = concat("'", python, "' '", kChatFolder, "make_forms.py' '",
                                     published_template(""), "' '", folder.path().string(), "' 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_EQ(OrderedJson::parse(folder.read("forms.json")), forms());
}

TEST(ChatFormFigures, AreOfAllFiles) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kChatFolder + "forms")) {
    found.push_back(entry.path().filename().string());
  }
  std::vector<std::string> known = files();
  std::ranges::sort(found);
  std::ranges::sort(known);
  EXPECT_EQ(found, known);
  EXPECT_EQ(found.size(), 20u);
}

INSTANTIATE_TEST_SUITE_P(All, ChatForms, ::testing::ValuesIn(files()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

}  // namespace
}  // namespace fsdp::data
