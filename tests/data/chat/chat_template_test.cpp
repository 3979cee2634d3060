#include "data/chat/chat_template.h"

#include <chrono>

#include "data/chat/chat_source.h"
#include "data/chat_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

const OrderedJson kMessages = {{{"role", "user"}, {"content", "a"}},
                               {{"role", "assistant"}, {"content", "b"}}};

ChatTemplate template_of(const std::string& text, const ProcessLimits& limits = {}) {
  return ChatTemplate({.text = text, .name = "t.jinja"}, 1, limits);
}

std::string error_of(const ChatTemplate& chat) {
  try {
    chat.render(kMessages);
  } catch (const TemplateError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ChatTemplate, RendersMessagesToolsVariablesAndTheGenerationPrompt) {
  ChatTemplateSource source{
      .text =
          "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
          "{% if tools %}{{ tools | tojson }}{% endif %}"
          "{% if add_generation_prompt %}assistant:{% endif %}",
      .name = "t"};
  source.variables["bos_token"] = "<s>";
  const ChatTemplate chat(std::move(source));
  EXPECT_EQ(chat.render(kMessages).text, "<s>user:a;assistant:b;");
  // Objects keep their order.
  const OrderedJson tools = {{{"z", 1}, {"a", nullptr}}};
  EXPECT_EQ(chat.render(kMessages, tools, true).text,
            "<s>user:a;assistant:b;[{\"z\": 1, \"a\": null}]assistant:");
}

TEST(ChatTemplate, FindsTurnsByGenerationBlocksAlone) {
  const auto turns =
      template_of(
          "{% for m in messages %}{{ m.role }}{% generation %}\n{{ m.content }}!{% endgeneration "
          "%}\n{% endfor %}")
          .render(kMessages)
          .turns;
  // In "user" a and "assistant" b: the line ends behind blocks are no text.
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].span, (TextSpan{4, 6}));
  EXPECT_EQ(turns[1].span, (TextSpan{15, 17}));
  EXPECT_EQ(turns[1].message, -1);  // two blocks, but one message of the assistant
}

TEST(ChatTemplate, KeepsTheWhiteSpaceThatAloneEndsATurn) {
  const auto chat = template_of(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}");
  const auto rendered = chat.render(kMessages);
  ASSERT_EQ(rendered.turns.size(), 1u);
  const TextSpan turn = rendered.turns[0].span;
  EXPECT_EQ(rendered.text.substr(turn.begin, turn.end - turn.begin), "b\n\n");
}

TEST(ChatTemplate, ErrorsNameTheTemplateAndThePlace) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    SCOPED_TRACE(text);
    std::vector<std::string> all = parts;
    all.emplace_back("the chat template t.jinja, ");
    expect_error(ErrorKind::kData, all, [&] { template_of(text); });
  };
  refused("ab\n  {% include 'x' %}", {"line 2, column 6: {% include %} is not supported"});
  refused("{{ 'abc }}", {"line 1, column "});
  refused("{% for m in messages %}", {"a block or bracket is not closed"});
  refused("{{ messages | }}", {"line 1, column 15: "});
  refused("\n{% endgeneration %}", {"line 2, column 1: {% endgeneration %} without {% generation %}"});
  refused("{% generation %}{% generation %}{% endgeneration %}", {"line 1, column 17: ", "inside another"});
  refused("{% generation %}", {"{% generation %} is not closed"});
  EXPECT_EQ(error_of(template_of("a\n {{ raise_exception('no system\nprompt') }}")),
            "the chat template t.jinja, line 2, column 20: the template refuses: no system prompt");
  EXPECT_EQ(
      error_of(template_of("{{ messages | wordwrap }}")).find("the chat template t.jinja, line 1, column "),
      0u);
  EXPECT_NE(error_of(template_of("{{ messages | wordwrap }}")).find("wordwrap"), std::string::npos);
}

TEST(ChatTemplate, EndlessLoopsRecursionAndHugeOutputsEnd) {
  const ProcessLimits limits{.seconds = 0.3, .memory_bytes = int64_t{64} << 20};
  const std::string loop =
      "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}"
      "{% endfor %}{% endfor %}{% endfor %}";
  EXPECT_EQ(error_of(template_of(loop, limits)), "the chat template t.jinja takes more than 0.3 seconds");
  const std::string deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
  const std::string deep_error = error_of(template_of(deep, {.seconds = 20}));
  EXPECT_TRUE(deep_error.ends_with("nests or recurses too deeply")) << deep_error;
#if !defined(__SANITIZE_ADDRESS__)
  const ProcessLimits memory{.seconds = 20, .memory_bytes = int64_t{64} << 20};
  const std::string wide =
      "{% set x = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set x.s = x.s + x.s %}"
      "{% endfor %}{{ x.s }}";
  EXPECT_EQ(error_of(template_of(wide, memory)),
            "the chat template t.jinja needs more than 64 MiB of memory");
#endif
  std::string brackets(200'000, '(');
  expect_error(ErrorKind::kData, {"t.jinja nests or recurses too deeply"},
               [&] { template_of("{{ " + brackets + " }}", {.seconds = 20}); });
}

TEST(ChatTemplate, RendersOnAfterAConversationThatItsLimitsEnded) {
  const auto chat = template_of(
      "{% for m in messages %}{% if m.content == 'loop' %}{% for a in range(1000) %}{% for b in range(1000) %}"
      "{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}{% endif %}{{ m.content }}{% endfor %}",
      {.seconds = 0.2});
  OrderedJson endless = kMessages;
  endless[0]["content"] = "loop";
  EXPECT_THROW(chat.render(endless), TemplateError);
  EXPECT_EQ(chat.render(kMessages).text, "ab");
}

TEST(ChatSource, TakesTheTemplateOfTheTokenizersFolder) {
  const TemporaryFolder folder;
  const std::string config =
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "one"})";
  const std::string tokenizer = folder.write("tokenizer.json", "{}");
  expect_error(ErrorKind::kUsage, {"has no chat template", "chatml, llama3, none"},
               [&] { find_chat_template("", tokenizer); });
  const std::string path = folder.write("tokenizer_config.json", config);
  EXPECT_EQ(find_chat_template("", tokenizer).text, "one");
  EXPECT_EQ(find_chat_template("", folder.path().string()).name, path);
  EXPECT_EQ(find_chat_template("", tokenizer, R"({"eos_token": "x"})").variables.dump(),
            R"({"bos_token":"<s>","eos_token":"x"})");
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]})");
  EXPECT_EQ(find_chat_template("", tokenizer).text, "two");
  EXPECT_EQ(find_chat_template(path, "bytes").text, "two");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "no"}]})");
  expect_error(ErrorKind::kData, {"has only tool_use"}, [&] { find_chat_template("", tokenizer); });
  // As in transformers, a file of its own goes before the config.
  folder.write("chat_template.jinja", "three");
  EXPECT_EQ(find_chat_template("", tokenizer).text, "three");
}

TEST(ChatSource, RefusesWhatIsNoTemplate) {
  expect_error(ErrorKind::kUsage, {"unknown chat template \"chatlm\"", "chatml, llama3, none"},
               [] { find_chat_template("chatlm", "bytes"); });
  expect_error(ErrorKind::kUsage, {"the tokenizer bytes has no chat template"},
               [] { find_chat_template("", "bytes"); });
  expect_error(ErrorKind::kUsage, {"`chat_variables`"}, [] { find_chat_template("chatml", "bytes", "[1]"); });
}

TEST(ChatSource, PresetsMarkTheAssistantsTurns) {
  for (const char* name : {"chatml", "llama3"}) {
    const auto rendered = ChatTemplate(find_chat_template(name, "bytes")).render(kMessages);
    ASSERT_EQ(rendered.turns.size(), 1u) << name;
    const TextSpan turn = rendered.turns[0].span;
    EXPECT_EQ(rendered.text.substr(turn.begin, 2), "b<") << name;
    EXPECT_EQ(rendered.text[turn.end - 1], '>') << name;
    EXPECT_EQ(rendered.turns[0].message, 1) << name;
  }
}

}  // namespace
}  // namespace fsdp::data
