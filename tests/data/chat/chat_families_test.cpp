// Conversations through the chat templates of model families: the text, the tokens and the mask of the
// assistant's tokens that transformers gives (tests/data/chat/make_chats.py).

#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "data/chat/chat_encoder.h"
#include "data/chat_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

const OrderedJson& chats() {
  static const auto parsed = OrderedJson::parse(util::read_file(kChatFolder + "chats.json"));
  return parsed;
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& [name, family] : chats()["families"].items()) names.push_back(name);
  return names;
}

class ChatFamilies : public ::testing::TestWithParam<std::string> {
 protected:
  /// As published, or with the blocks {% generation %} that the figures were made with.
  std::string text_of_template(bool marked) const {
    std::string text = family.contains("text") ? family["text"].get<std::string>()
                                               : util::read_file(published_template(family["file"]));
    if (!marked) return text;
    for (const OrderedJson& mark : family["marks"]) {
      const auto before = mark[0].get<std::string>(), after = mark[1].get<std::string>();
      for (size_t at = 0; (at = text.find(before, at)) != std::string::npos; at += after.size()) {
        text.replace(at, before.size(), after);
      }
    }
    return text;
  }

  void expect_figures(bool marked) const {
    const TemporaryFolder folder;
    const std::string tokenizer_name = kChatFolder + family["tokenizer"].get<std::string>();
    const auto tokenizer = make_tokenizer(tokenizer_name);
    ChatOptions options{.chat_template = folder.write("chat.jinja", text_of_template(marked))};
    if (family.contains("variables")) options.chat_variables = family["variables"].dump();
    const auto encoder = make_chat_encoder(options, *tokenizer, tokenizer_name);
    for (const auto& [name, expected] : family["conversations"].items()) {
      OrderedJson row = {{"messages", chats()["conversations"][name]}};
      if (name == "calls") row["tools"] = chats()["tools"];
      std::vector<int64_t> ids;
      std::vector<TokenPart> parts;
      encoder->encode(row.dump(), ids, parts);
      EXPECT_EQ(tokenizer->decode(ids), tokenizer->decode(expected["ids"].get<std::vector<int64_t>>()))
          << name;
      EXPECT_EQ(ids, expected["ids"].get<std::vector<int64_t>>()) << name;
      std::string mask;
      for (const TokenPart part : parts) {
        mask += part == TokenPart::kAssistant || part == TokenPart::kLastTurn ? '1' : '0';
      }
      EXPECT_EQ(mask, expected["mask"].get<std::string>()) << name;
    }
  }

  const OrderedJson& family = chats()["families"][GetParam()];
};

TEST_P(ChatFamilies, PublishedTemplatesGiveTheTokensAndMasksOfTransformers) {
  expect_figures(/*marked=*/false);
}

TEST_P(ChatFamilies, GenerationBlocksGiveTheTokensAndMasksOfTransformers) { expect_figures(/*marked=*/true); }

TEST(ChatFigures, AreThoseOfTheTransformersAtHand) {
  const char* python = std::getenv("FSDP_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has transformers";
  const TemporaryFolder folder;
  const std::string command =
      concat("'", python, "' '", kChatFolder, "make_chats.py' '", published_template(""), "' '",
             folder.path().string(), "' >/dev/null 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_EQ(OrderedJson::parse(folder.read("chats.json"))["families"], chats()["families"]);
  const std::string values =
      concat("'", python, "' '", kChatFolder, "make_values.py' '", folder.path().string(), "' 2>&1");
  ASSERT_EQ(std::system(values.c_str()), 0) << values;
  EXPECT_EQ(folder.read("values.json"), util::read_file(kChatFolder + "values.json"));
}

INSTANTIATE_TEST_SUITE_P(All, ChatFamilies, ::testing::ValuesIn(families()), [](const auto& test) {
  std::string name = test.param;
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
});

}  // namespace
}  // namespace fsdp::data
