#include "data/chat/chat_encoder.h"

#include "data/chat/chat_rows.h"
#include "data/chat/conversation_encoder.h"
#include "data/chat_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

/// The text of each run of tokens of one part: "c" context (with the first token), "a" assistant, "l" last
/// turn.
std::vector<std::string> runs_of(const Tokenizer& tokenizer, const std::string& chat_template,
                                 const std::string& row) {
  const auto encoder = make_chat_encoder({.chat_template = chat_template}, tokenizer, tokenizer.name());
  std::vector<int64_t> ids;
  std::vector<TokenPart> parts;
  encoder->encode(row, ids, parts);
  EXPECT_EQ(parts.front(), TokenPart::kDocumentStart);
  std::vector<std::string> runs;
  char before = '\0';
  for (size_t i = 0; i < ids.size(); ++i) {
    const char kind = parts[i] == TokenPart::kAssistant ? 'a' : parts[i] == TokenPart::kLastTurn ? 'l' : 'c';
    if (kind != before) runs.push_back(std::string(1, kind) + ":");
    before = kind;
    runs.back() += tokenizer.decode({ids[i]});
  }
  return runs;
}

class ChatEncoder : public ::testing::Test {
 protected:
  std::vector<std::string> runs(const std::string& row, const std::string& chat_template = "chatml") const {
    return runs_of(*tokenizer, chat_template, row);
  }
  std::string error(const std::string& row, const std::string& chat_template = "chatml") const {
    try {
      runs(row, chat_template);
    } catch (const RowError& refused) {
      return refused.what();
    }
    return "nothing was thrown";
  }

  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
};

using Runs = std::vector<std::string>;

TEST_F(ChatEncoder, TellsTheLastTurnFromOthers) {
  EXPECT_EQ(runs(R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"},
                                  {"role": "user", "content": "3"}, {"role": "assistant", "content": "4"}]})"),
            (Runs{"c:<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n", "a:2<|im_end|>",
                  "c:\n<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n", "l:4<|im_end|>", "c:\n"}));
}

TEST_F(ChatEncoder, PromptAndCompletionAreAUserAndTheAssistant) {
  EXPECT_EQ(runs(R"({"prompt": "1", "completion": "2"})"),
            (Runs{"c:<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n", "l:2<|im_end|>", "c:\n"}));
  // Of a prompt with messages, the assistant's are not learnt.
  EXPECT_EQ(runs(R"({"prompt": [{"role": "assistant", "content": "1"}], "completion": "2"})"),
            (Runs{"c:<|im_start|>assistant\n1<|im_end|>\n<|im_start|>assistant\n", "l:2<|im_end|>", "c:\n"}));
}

TEST_F(ChatEncoder, WithoutATemplatePromptAndCompletionAreTheText) {
  EXPECT_EQ(runs(R"({"prompt": "ab", "completion": " cd"})", "none"), (Runs{"c:ab", "l: cd"}));
  EXPECT_NE(error(R"({"messages": []})", "none").find("must have the texts prompt and completion"),
            std::string::npos);
  const auto qwen = make_tokenizer(kChatFolder + "qwen2");
  EXPECT_EQ(runs_of(*qwen, "none", R"({"prompt": "ab", "completion": " the"})"),
            (Runs{"c:ab", "l: the<|endoftext|>"}));
}

TEST_F(ChatEncoder, LeavesOutMessagesOfWeightZero) {
  EXPECT_EQ(runs(R"({"messages": [{"role": "assistant", "content": "1"}, {"role": "user", "content": "2"},
                                  {"role": "assistant", "content": "3", "weight": 0}]})"),
            (Runs{"c:<|im_start|>assistant\n", "l:1<|im_end|>",
                  "c:\n<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"}));
}

TEST_F(ChatEncoder, SaysWhatIsWrongWithARow) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({"text": "a"})",
       R"(has the fields "text", but must have those of a form of conversations: OpenAI's messages (messages: role, content), ShareGPT (conversations: from, value), )"},
      {R"([])", "is a JSON array, but must be an object"},
      {R"({"messages": )", "is not valid JSON"},
      {R"({"messages": []})", "has messages that is empty"},
      {R"({"messages": [{"role": "user", "content": "a"}]})",
       "has no message of the assistant to learn from"},
      {R"({"messages": [{"role": "human", "content": "a"}]})",
       R"(message 1 has the role "human", but expected)"},
      {R"({"messages": [{"content": "a"}]})", "message 1 has no role"},
      {R"({"messages": [{"role": "user"}]})", "message 1 (user) has no content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       R"(message 1 has a content of type "image_url", but only text is supported)"},
      {R"({"prompt": "a", "completion": [{"role": "assistant", "content": [{"type": "image"}]}]})",
       R"(message 2 has a content of type "image")"},
      {R"({"messages": [{"role": "assistant", "content": "a", "function_call": {"name": "f"}}]})",
       "message 1 has a function_call, OpenAI's old form"},
      {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "bot", "value": "b"}]})",
       R"(message 2 has the role "bot", but expected system, developer, user, assistant, tool, human, gpt, chatgpt, )"},
      {R"({"conversations": [{"from": "human", "value": "a"}, {"role": "assistant", "content": "b"}]})",
       "message 2 has no from"},
      {R"({"conversations": [{"from": "human"}, {"from": "gpt", "value": "b"}]})",
       "message 1 (user) has no content"},
      {R"({"conversations": [{"from": "function_call", "value": "f(x"}]})", "message 1 is not valid JSON"},
      {R"({"conversations": [{"from": "function_call", "value": "{}"}]})",
       "message 1 (function_call) is no JSON object with a name"},
      {R"({"prompt": "a", "completion": "b", "tools": "[1"})", "has tools, a text that is not valid JSON"},
      {R"({"prompt": "a", "completion": "b", "tools": "{}"})", "has tools that are not a list"},
      {R"({"instruction": ["a"], "output": "b"})", "has instruction that is a array, but must be a text"},
      {R"({"instruction": "a", "output": 3})", "has a text of the assistant that is a number"},
      {R"({"instruction": "a", "output": "b", "history": [["c"]]})",
       "has history that is not a list of pairs"},
      {R"({"instruction": "a", "output": null})",
       R"(has the fields "instruction", "output", but must have those)"},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": 2}]})", "message 1 has the weight 2"},
      {R"({"prompt": "a", "completion": 3})", "has a completion that is a number"},
      {R"({"messages": [{"role": "assistant", "content": "a", "train": false}]})",
       R"(message 1 has "train": false, which is not read; write "weight": 0)"},
      {R"({"messages": [{"role": "assistant", "content": "a", "training": 0}]})",
       R"(message 1 has "training": 0)"},
      {R"({"messages": [{"role": "assistant", "content": "a", "train_detail": []}]})",
       R"(has "train_detail")"},
      {R"({"train": false, "prompt": "a", "completion": "b"})", R"(has "train": false)"},
      {R"({"messages": [{"role": "user", "content": "a"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]})",
       "has tool_calls in message 2, which the chat template chatml does not write"},
  };
  for (const auto& [row, part] : rows) EXPECT_NE(error(row).find(part), std::string::npos) << error(row);
  const fsdp::testing::TemporaryFolder folder;
  const std::string users =
      folder.write("users.jinja",
                   "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_NE(
      error(R"({"prompt": "a", "completion": "b"})", users).find("writes nothing of message 2 (assistant)"),
      std::string::npos);
}

TEST(ChatRows, AreChangedAsTemplatesNeedThem) {
  const ChatRow row = parse_chat_row(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": null, "reasoning": "t",
           "tool_calls": [{"function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]}]})");
  EXPECT_EQ(row.messages[0].dump(), R"({"role":"user","content":"ab"})");
  EXPECT_EQ(
      row.messages[1].dump(),
      R"({"role":"assistant","reasoning":"t","tool_calls":[{"function":{"name":"f","arguments":{"z":1,"a":2}}}],)"
      R"("thinking":"t","reasoning_content":"t"})");
}

TEST_F(ChatEncoder, KeepsNumbersAndWhiteSpaceAsPythonDoes) {
  const fsdp::testing::TemporaryFolder folder;
  const std::string calls =
      folder.write("t.jinja",
                   "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% if m.tool_calls %}"
                   "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}");
  EXPECT_EQ(
      runs(R"({"messages": [{"role": "user", "content": "\u3000x\u2028"}, {"role": "assistant", "content": "",
          "tool_calls": [{"type": "function", "function": {"name": "f", "arguments":
          "{\"lat\": 52.520008, \"amount\": 1250000.0, \"id\": 12345678901234567890, \"n\": null}"}}]}]})",
           calls),
      (Runs{
          "c:[user]x",
          "l:[assistant]{\"lat\": 52.520008, \"amount\": 1250000.0, \"id\": 12345678901234567890, \"n\": null}"}));
}

TEST(PlacesOf, AreTheBytesOfTokens) {
  const auto bytes = make_tokenizer("bytes");
  EXPECT_EQ(places_of(*bytes, "ab", {'a', 'b'}), (std::vector<TextSpan>{{0, 1}, {1, 2}}));
  EXPECT_EQ(places_of(*bytes, "ab", {'a', 'c'}), std::nullopt);
  EXPECT_EQ(places_of(*bytes, "ab", {'a'}), std::nullopt);
}

TEST(ChatEncoderTokens, RefusesATokenizerThatSpellsSpecialTokensOut) {
  const fsdp::testing::TemporaryFolder folder;
  const std::string config = concat(R"({"bos_token": "<|nowhere|>", "chat_template": "a"})");
  std::filesystem::copy(kChatFolder + "llama3/tokenizer.json", folder / "tokenizer.json");
  folder.write("tokenizer_config.json", config);
  const std::string name = folder / "tokenizer.json";
  const auto tokenizer = make_tokenizer(kChatFolder + "llama3");
  expect_error(ErrorKind::kData, {"bos_token <|nowhere|> of chat templates as one token"},
               [&] { make_chat_encoder({}, *tokenizer, name); });
}

TEST(ChatEncoderTokens, RefusesMarkersThatTheTokenizerHasNoTokenFor) {
  const std::string row = R"({"prompt": "<|mine|> [x]", "completion": "a"})";
  for (const std::string name : {"llama3", "mistral"}) {
    const std::string path = kChatFolder + name;
    const auto tokenizer = make_tokenizer(path);
    const auto encoded = [&](const ChatOptions& options) {
      std::vector<int64_t> ids;
      std::vector<TokenPart> parts;
      make_chat_encoder(options, *tokenizer, path)->encode(row, ids, parts);
      return ids.size();
    };
    const ChatOptions chatml{.chat_template = "chatml", .chat_variables = R"({"bos_token": ""})"};
    expect_error(
        ErrorKind::kData,
        {"chat template chatml writes <|im_start|>, <|im_end|>, but the tokenizer", "has no such tokens"},
        [&] { encoded(chatml); });
    ChatOptions spelled = chatml;
    spelled.spell_markers = true;
    EXPECT_GT(encoded(spelled), 20u);
  }
  const auto tokenizer = make_tokenizer(kChatFolder + "qwen2");
  std::vector<int64_t> ids;
  std::vector<TokenPart> parts;
  make_chat_encoder({.chat_template = "chatml"}, *tokenizer, kChatFolder + "qwen2")->encode(row, ids, parts);
  EXPECT_FALSE(ids.empty());
}

}  // namespace
}  // namespace fsdp::data
