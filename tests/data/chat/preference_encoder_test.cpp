#include "data/chat/preference_encoder.h"

#include <gtest/gtest.h>

#include "data/chat/preference_rows.h"
#include "data/chat_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

/// The documents of a row, each as the texts of its runs of tokens of one part: "c" context (with the first
/// token), "a" the answer that is not preferred, "l" the one that is.
using Answers = std::vector<std::vector<std::string>>;

Answers answers_of(const Tokenizer& tokenizer, const ChatOptions& options, const std::string& row) {
  const auto encoder = make_preference_encoder(options, tokenizer, tokenizer.name());
  std::vector<int64_t> ids;
  std::vector<TokenPart> parts;
  encoder->encode(row, ids, parts);
  Answers answers;
  char before = '\0';
  for (size_t i = 0; i < ids.size(); ++i) {
    const char kind = parts[i] == TokenPart::kAssistant ? 'a' : parts[i] == TokenPart::kLastTurn ? 'l' : 'c';
    if (parts[i] == TokenPart::kDocumentStart) {
      answers.emplace_back();
      before = '\0';
    }
    if (kind != before) answers.back().push_back(std::string(1, kind) + ":");
    before = kind;
    answers.back().back() += tokenizer.decode({ids[i]});
  }
  return answers;
}

class PreferenceEncoder : public ::testing::Test {
 protected:
  Answers answers(const std::string& row, const std::string& chat_template = "chatml") const {
    return answers_of(*tokenizer, {.chat_template = chat_template}, row);
  }
  std::string error(const std::string& row, const std::string& chat_template = "chatml") const {
    try {
      answers(row, chat_template);
    } catch (const RowError& refused) {
      return refused.what();
    }
    return "nothing was thrown";
  }

  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
};

const std::string kQuestion = "c:<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n";

TEST_F(PreferenceEncoder, APairIsTwoConversationsTheChosenFirst) {
  const Answers expected = {{kQuestion, "l:2<|im_end|>", "c:\n"}, {kQuestion, "a:3<|im_end|>", "c:\n"}};
  const std::vector<std::string> rows = {
      R"({"prompt": "1", "chosen": "2", "rejected": "3"})",
      R"({"rejected": "3", "chosen": "2", "prompt": [{"role": "user", "content": "1"}]})",
      R"({"prompt": [{"role": "user", "content": "1"}], "chosen": [{"role": "assistant", "content": "2"}],
          "rejected": {"role": "assistant", "content": "3"}})",
      R"({"messages": "1", "chosen": "2", "rejected": "3"})",
      R"({"conversations": [{"from": "human", "value": "1"}], "chosen": {"from": "gpt", "value": "2"},
          "rejected": {"from": "gpt", "value": "3"}, "label": false})",
      R"({"chosen": [{"from": "human", "value": "1"}, {"from": "gpt", "value": "2"}],
          "rejected": [{"value": "1", "from": "human"}, {"from": "gpt", "value": "3"}], "prompt": "0", "question": "0"})",
      R"({"prompt": "1", "chosen": [{"role": "assistant", "content": "2"}],
          "rejected": [{"role": "assistant", "content": "3"}], "messages": [{"role": "user", "content": "0"}]})",
      R"({"instruction": "1", "chosen_response": "2", "rejected_response": "3", "input": null})"};
  for (const std::string& row : rows) EXPECT_EQ(answers(row), expected) << row;
}

TEST_F(PreferenceEncoder, AnAnswerWithALabelIsOneConversation) {
  const auto expected = [](char part) {
    return Answers{{kQuestion, std::string(1, part) + ":2<|im_end|>", "c:\n"}};
  };
  EXPECT_EQ(answers(R"({"prompt": "1", "completion": "2", "label": true})"), expected('l'));
  EXPECT_EQ(answers(R"({"prompt": "1", "completion": "2", "label": false})"), expected('a'));
  EXPECT_EQ(answers(R"({"prompt": "1", "completion": "2", "label": 1})"), expected('l'));
  EXPECT_EQ(answers(R"({"question": "1", "completion": "2", "kto_tag": 0})"), expected('a'));
  EXPECT_EQ(answers(R"({"label": true, "messages": [{"role": "user", "content": "1"},
                        {"role": "assistant", "content": "2"}]})"),
            expected('l'));
}

TEST_F(PreferenceEncoder, AllMessagesOfTheAssistantInAnAnswerAreLearnt) {
  EXPECT_EQ(
      answers(R"({"prompt": [{"role": "assistant", "content": "0"}, {"role": "user", "content": "1"}],
      "chosen": [{"role": "assistant", "content": "2"}, {"role": "user", "content": "3"},
                 {"role": "assistant", "content": "4"}], "rejected": "5"})"),
      (Answers{{"c:<|im_start|>assistant\n0<|im_end|>\n" + kQuestion.substr(2), "l:2<|im_end|>",
                "c:\n<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n", "l:4<|im_end|>", "c:\n"},
               {"c:<|im_start|>assistant\n0<|im_end|>\n" + kQuestion.substr(2), "a:5<|im_end|>", "c:\n"}}));
}

TEST_F(PreferenceEncoder, OnlyTheLastMessageOfLabelledConversationsIsTheAnswer) {
  EXPECT_EQ(answers(R"({"label": false, "conversations": [{"from": "human", "value": "1"},
      {"from": "gpt", "value": "2"}, {"from": "human", "value": "3"}, {"from": "gpt", "value": "4"}]})"),
            (Answers{{kQuestion + "2<|im_end|>\n<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n",
                      "a:4<|im_end|>", "c:\n"}}));
}

TEST_F(PreferenceEncoder, TheSystemsTextBeginsBothConversations) {
  const std::string system = "c:<|im_start|>system\ns<|im_end|>\n" + kQuestion.substr(2);
  const Answers expected = {{system, "l:2<|im_end|>", "c:\n"}, {system, "a:3<|im_end|>", "c:\n"}};
  EXPECT_EQ(answers(R"({"system": "s", "question": "1", "chosen": "2", "rejected": "3"})"), expected);
  EXPECT_EQ(answers(R"({"system": "other", "prompt": [{"role": "system", "content": "s"},
      {"role": "user", "content": "1"}], "chosen": "2", "rejected": "3"})"),
            expected);
}

TEST_F(PreferenceEncoder, WithoutATemplateTextsAreUnchanged) {
  EXPECT_EQ(answers(R"({"prompt": "ab", "chosen": " c", "rejected": " d"})", "none"),
            (Answers{{"c:ab", "l: c"}, {"c:ab", "a: d"}}));
  EXPECT_EQ(answers(R"({"prompt": "ab", "completion": " c", "label": false})", "none"),
            (Answers{{"c:ab", "a: c"}}));
  // TRL gives a blank before the first difference to the answers.
  EXPECT_EQ(answers(R"({"chosen": "ab cd", "rejected": "ab ef"})", "none"),
            (Answers{{"c:ab", "l: cd"}, {"c:ab", "a: ef"}}));
  EXPECT_EQ(answers(R"({"chosen": "ab", "rejected": "abc"})", "none"),
            (Answers{{"c:a", "l:b"}, {"c:a", "a:bc"}}));
  // A character is not divided: both begin with the same byte.
  EXPECT_EQ(answers("{\"chosen\": \"a\u00e9\", \"rejected\": \"a\u00e8\"}", "none"),
            (Answers{{"c:a", "l:\u00e9"}, {"c:a", "a:\u00e8"}}));
  const auto qwen = make_tokenizer(kChatFolder + "qwen2");
  EXPECT_EQ(answers_of(*qwen, {.chat_template = "none"},
                       R"({"prompt": "ab", "chosen": " the", "rejected": " a<|endoftext|>"})"),
            (Answers{{"c:ab", "l: the<|endoftext|>"}, {"c:ab", "a: a<|endoftext|>"}}));
}

TEST_F(PreferenceEncoder, GivesTheTokensOfTheChatEncoder) {
  const auto qwen = make_tokenizer(kChatFolder + "qwen2");
  const ChatOptions options{.chat_template = published_template("Qwen-Qwen3-0.6B.jinja")};
  const auto chats = make_chat_encoder(options, *qwen, kChatFolder + "qwen2");
  std::vector<int64_t> ids, expected;
  std::vector<TokenPart> parts, expected_parts;
  const std::string user = R"({"role": "user", "content": "3+3?"}, )",
                    good = R"({"role": "assistant", "content": "<think>\nadd\n</think>\n\n6"})",
                    bad = R"({"role": "assistant", "content": "7"})";
  for (const std::string& answer : {good, bad})
    chats->encode(R"({"messages": [)" + user + answer + "]}", expected, expected_parts);
  make_preference_encoder(options, *qwen, kChatFolder + "qwen2")
      ->encode(R"({"chosen": [)" + user + good + R"(], "rejected": [)" + user + bad + "]}", ids, parts);
  EXPECT_EQ(ids, expected);
  // The chat encoder learns the only turn of both as the last one.
  const auto second = std::find(parts.begin() + 1, parts.end(), TokenPart::kDocumentStart) - parts.begin();
  for (size_t i = static_cast<size_t>(second); i < expected_parts.size(); ++i) {
    if (expected_parts[i] == TokenPart::kLastTurn) expected_parts[i] = TokenPart::kAssistant;
  }
  EXPECT_EQ(parts, expected_parts);
  EXPECT_GT(std::ranges::count(parts, TokenPart::kAssistant), 0);
}

TEST_F(PreferenceEncoder, SaysWhatIsWrongWithARow) {
  const std::string user = R"({"role": "user", "content": "1"})",
                    two = R"({"role": "assistant", "content": "2"})",
                    three = R"({"role": "assistant", "content": "3"})";
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({"text": "a"})",
       R"(has the fields "text", but must have those of a form of preferences: pairs of conversations (chosen, rejected), pairs of answers (prompt, chosen, rejected), )"},
      {R"([])", "is a JSON array, but must be an object"},
      {R"({"prompt": "1", "chosen": "2"})", "has chosen without rejected, but a pair must have both"},
      {R"({"prompt": "1", "chosen": null, "rejected": "2"})", "has rejected without chosen"},
      {R"({"prompt": "1", "completion": "2"})", R"(has the fields "prompt", "completion", but must have)"},
      {R"({"completion": "2", "label": true})", R"(has the fields "completion", "label", but must have)"},
      {R"({"chosen": {"role": "assistant", "content": "2"}, "rejected": {"role": "assistant", "content": "3"}})",
       R"(has the fields "chosen", "rejected", but must have)"},
      {R"({"prompt": "1", "chosen": "2", "rejected": "2"})", "has equal answers in chosen and rejected"},
      {R"({"chosen": [)" + user + ", " + two + R"(], "rejected": [)" + user + ", " + two + "]}",
       "has equal answers in chosen and rejected"},
      {R"({"prompt": "1", "chosen": "", "rejected": "2"})", "has chosen that is an empty answer"},
      {R"({"prompt": "1", "completion": "", "label": false})", "has completion that is an empty answer"},
      {R"({"prompt": "", "chosen": "2", "rejected": "3"})", "has an empty prompt"},
      {R"({"instruction": "", "input": "", "chosen": "2", "rejected": "3"})", "has an empty prompt"},
      {R"({"prompt": [], "chosen": "2", "rejected": "3"})", "has prompt that is empty"},
      {R"({"prompt": 1, "chosen": "2", "rejected": "3"})", "has prompt that is a number"},
      {R"({"prompt": "1", "chosen": 2, "rejected": "3"})", "has chosen that is a number, but must be a list"},
      {R"({"prompt": "1", "chosen": "2", "rejected": []})", "has rejected that is empty"},
      {R"({"prompt": "1", "completion": "2", "label": "good"})",
       R"(has the label "good", but expected true or false)"},
      {R"({"prompt": "1", "completion": "2", "label": 0.5})", "has the label 0.5, but expected"},
      {R"({"instruction": "1", "output": "2", "kto_tag": "true"})", R"(has the kto_tag "true")"},
      {R"({"chosen": [)" + user + ", " + two + R"(], "rejected": "3"})",
       "has chosen that is a list of messages and rejected that is a string, but both must be lists"},
      {R"({"chosen": [], "rejected": [)" + user + "]}", "has chosen that is an empty list"},
      {R"({"chosen": [)" + user + ", " + two + R"(], "rejected": [)" + three + "]}",
       "has chosen and rejected that do not begin with the same message"},
      {R"({"chosen": [{"role": "system", "content": "s"}, )" + user + ", " + two +
           R"(], "rejected": [{"role": "system", "content": "s"}, {"role": "user", "content": "0"}, )" +
           three + "]}",
       "has chosen that answers with message 2 of the conversation (user), but expected one of the assistant"},
      {R"({"prompt": "1", "chosen": [)" + user + ", " + two + R"(], "rejected": "3"})",
       "has chosen that answers with message 2 of the conversation (user)"},
      {R"({"chosen": "1 2", "rejected": "1 3"})",
       "has the texts chosen and rejected without a prompt, which a chat template needs"},
      {R"({"messages": [)" + two + R"(], "label": true})", "has messages without a prompt before the last"},
      {R"({"messages": [)" + two + ", " + user + R"(], "label": true})",
       "has messages that answers with message 2 of the conversation (user)"},
      {R"({"prompt": "1", "chosen": [{"role": "assistant", "content": "2", "weight": 0}], "rejected": "3"})",
       "has chosen without a message of the assistant to learn from"},
      {R"({"prompt": "1", "chosen": [{"role": "bot", "content": "2"}], "rejected": "3"})",
       R"(message 2 has the role "bot", but expected)"},
      {R"({"prompt": "1", "chosen": "2", "rejected": "3", "tools": "{}"})", "has tools that are not a list"},
  };
  for (const auto& [row, part] : rows)
    EXPECT_NE(error(row).find(part), std::string::npos) << row << "\n" << error(row);

  const std::vector<std::pair<std::string, std::string>> plain = {
      {R"({"prompt": "1", "chosen": [)" + two + R"(], "rejected": "3"})",
       "has chosen that is a array, but without a chat template prompts and answers must be texts"},
      {R"({"prompt": [)" + user + R"(], "chosen": "2", "rejected": "3"})", "has prompt that is a array"},
      {R"({"question": "1", "chosen": "2", "rejected": "3"})",
       "is in the form of pairs of answers (question, chosen, rejected), which needs a chat template"},
      {R"({"prompt": "", "chosen": "2", "rejected": "3"})", "has an empty prompt"},
      {R"({"prompt": "1", "chosen": "2", "rejected": ""})", "has rejected that is an empty answer"},
      {R"({"prompt": "1", "chosen": "2", "rejected": "2"})", "has equal answers in chosen and rejected"},
      {R"({"chosen": "ab", "rejected": "cd"})", "has chosen and rejected that do not begin alike"},
      {R"({"chosen": " a", "rejected": " b"})", "has chosen and rejected that do not begin alike"},
  };
  for (const auto& [row, part] : plain)
    EXPECT_NE(error(row, "none").find(part), std::string::npos) << row << "\n" << error(row, "none");
}

TEST_F(PreferenceEncoder, RefusesAnswersOfTheSameTokens) {
  const fsdp::testing::TemporaryFolder folder;
  const std::string trims =
      folder.write("t.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}");
  EXPECT_EQ(error(R"({"prompt": "1", "chosen": "2", "rejected": "2 "})", trims),
            "has chosen and rejected answers of the same tokens");
}

TEST_F(PreferenceEncoder, RefusesTurnsThatATemplateDoesNotTell) {
  const fsdp::testing::TemporaryFolder folder;
  const std::string blocks =
      folder.write("t.jinja",
                   "{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>{% endif %}{% endfor %}"
                   "{% generation %}{{ messages[-1].content }}{% endgeneration %}");
  EXPECT_EQ(answers(R"({"prompt": "1", "chosen": "2", "rejected": "3"})", blocks),
            (Answers{{"c:<1>", "l:2"}, {"c:<1>", "a:3"}}));
  EXPECT_NE(error(R"({"prompt": [{"role": "assistant", "content": "0"}, {"role": "user", "content": "1"}],
                      "chosen": "2", "rejected": "3"})",
                  blocks)
                .find("leaves messages out by their weight or as a prompt"),
            std::string::npos);
}

TEST(PreferenceRows, HaveTheColumnsOfAllForms) {
  const std::vector<std::string> columns = preference_columns();
  for (const char* name : {"prompt", "chosen", "rejected", "completion", "label", "kto_tag", "messages",
                           "conversations", "question", "input", "instruction", "output", "history",
                           "chosen_response", "rejected_response", "system", "tools"}) {
    EXPECT_EQ(std::ranges::count(columns, name), 1) << name;
  }
  EXPECT_EQ(columns.size(), 17u);
}

}  // namespace
}  // namespace fsdp::data
