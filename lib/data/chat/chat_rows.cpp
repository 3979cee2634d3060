#include "data/chat/chat_rows.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/util/error.h"
#include "base/util/text.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {
namespace {

/// Whether the row has a value. A table has null in the columns for which a row has no value.
bool has(const OrderedJson& row, std::string_view field) {
  const auto found = row.find(field);
  return found != row.end() && !found->is_null();
}

/// Returns the text in a field; "" if the row lacks it.
std::string text_in(const OrderedJson& row, std::string_view field) {
  if (!has(row, field)) return "";
  const OrderedJson& value = row[std::string(field)];
  if (!value.is_string())
    throw RowError(concat("has ", field, " that is a ", value.type_name(), ", but must be a text"));
  return value.get<std::string>();
}

void add_text(const char* role, const OrderedJson& text, ChatRow& to) {
  if (!text.is_string()) throw RowError(concat("has a text of the ", role, " that is a ", text.type_name()));
  add_message({{"role", role}, {"content", text}}, MessageNames::kOpenAi, /*learnt=*/true, to);
}

/// Adds the field system, which is the first message in axolotl and LLaMA-Factory too.
void add_system(const OrderedJson& row, ChatRow& to) {
  if (const std::string text = text_in(row, "system"); !text.empty()) add_text("system", text, to);
}

void read_messages(const OrderedJson& row, const std::string& list, ChatRow& to) {
  const OrderedJson& messages = row[list];
  const char* const role_field = names_in(messages) == MessageNames::kShareGpt ? "from" : "role";
  const bool begins_with_system = messages.is_array() && !messages.empty() && messages[0].is_object() &&
                                  messages[0].value(role_field, OrderedJson()) == "system";
  if (!begins_with_system) add_system(row, to);
  add_messages(messages, list, nullptr, /*learnt=*/true, to);
}

/// Reads instruction, input and output, as LLaMA-Factory does: the input follows the instruction in a line of
/// its own, and history, a list of earlier prompts and answers, precedes both.
void read_alpaca(const OrderedJson& row, const std::string& /*list*/, ChatRow& to) {
  add_system(row, to);
  if (has(row, "history")) {
    const OrderedJson& history = row["history"];
    if (!history.is_array()) throw RowError(concat("has history that is a ", history.type_name()));
    for (const OrderedJson& turn : history) {
      if (!turn.is_array() || turn.size() != 2) {
        throw RowError("has history that is not a list of pairs, each a prompt and its answer");
      }
      add_text("user", turn[0], to);
      add_text("assistant", turn[1], to);
    }
  }
  std::string prompt = text_in(row, "instruction");
  const std::string input = text_in(row, "input");
  if (!prompt.empty() && !input.empty()) prompt += "\n";
  add_text("user", prompt + input, to);
  add_text("assistant", row["output"], to);
}

void read_prompt(const OrderedJson& row, const std::string& /*list*/, ChatRow& to) {
  add_messages(row["prompt"], "a prompt", "user", /*learnt=*/false, to);
  add_messages(row["completion"], "a completion", "assistant", /*learnt=*/true, to);
}

struct ChatForm {
  std::string_view name;                   ///< name and fields, for messages
  std::array<std::string_view, 2> fields;  ///< fields that a row in this form has; "": none
  std::optional<MessageNames> names;       ///< names in the list fields[0]; nothing if it is no list
  void (*read)(const OrderedJson& row, const std::string& list, ChatRow& to);
};

using enum MessageNames;

/// All forms, the first that fits first.
constexpr std::array<ChatForm, 6> kForms = {{
    {"OpenAI's messages (messages: role, content)", {"messages", ""}, kOpenAi, &read_messages},
    {"ShareGPT (conversations: from, value)", {"conversations", ""}, kShareGpt, &read_messages},
    {"OpenAI's messages (conversations: role, content)", {"conversations", ""}, kOpenAi, &read_messages},
    {"ShareGPT (messages: from, value)", {"messages", ""}, kShareGpt, &read_messages},
    {"Alpaca (instruction, output)", {"instruction", "output"}, std::nullopt, &read_alpaca},
    {"prompt and completion (prompt, completion)", {"prompt", "completion"}, std::nullopt, &read_prompt},
}};
/// Fields that rows may have besides those of kForms.
constexpr std::array<const char*, 4> kMoreFields = {"input", "system", "history", "tools"};

bool fits(const ChatForm& form, const OrderedJson& row) {
  for (const std::string_view field : form.fields) {
    if (!field.empty() && !has(row, field)) return false;
  }
  return !form.names || names_in(row[std::string(form.fields[0])]) == *form.names;
}

std::string names_of(const OrderedJson& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back("\"" + item.key() + "\"");
  return names.empty() ? "no fields" : "the fields " + util::join(names, ", ");
}

OrderedJson parse_row(std::string_view text) {
  OrderedJson row = parse_row_json(text, "");
  if (!row.is_object())
    throw RowError(concat("is a JSON ", row.type_name(), ", but must be an object, a conversation"));
  refuse_foreign_weight(row, "has");
  return row;
}

const ChatForm& form_of(const OrderedJson& row) {
  const auto* form = std::ranges::find_if(kForms, [&](const ChatForm& each) { return fits(each, row); });
  if (form != kForms.end()) return *form;
  std::string known;
  for (const ChatForm& each : kForms) known += concat(known.empty() ? "" : ", ", each.name);
  throw RowError(concat("has ", names_of(row), ", but must have those of a form of conversations: ", known));
}

OrderedJson tools_of(const OrderedJson& row) {
  if (!has(row, "tools")) return nullptr;
  OrderedJson tools = row["tools"];
  if (tools == "") return nullptr;
  // Many data sets have the list as a JSON text, since a table's column has only one type.
  if (tools.is_string()) tools = parse_row_json(tools.get<std::string>(), "has tools, a text that");
  if (!tools.is_array()) throw RowError("has tools that are not a list");
  return tools;
}

}  // namespace

std::vector<std::string> chat_columns() {
  std::vector<std::string> columns(kMoreFields.begin(), kMoreFields.end());
  for (const ChatForm& form : kForms) {
    for (const std::string_view field : form.fields) {
      if (!field.empty() && std::ranges::find(columns, field) == columns.end()) columns.emplace_back(field);
    }
  }
  return columns;
}

ChatRow parse_chat_row(std::string_view text) {
  const OrderedJson object = parse_row(text);
  const ChatForm& form = form_of(object);
  ChatRow row;
  row.form = form.name;
  form.read(object, std::string(form.fields[0]), row);
  if (std::ranges::find(row.learnt, true) == row.learnt.end()) {
    throw RowError("has no message of the assistant to learn from");
  }
  row.tools = tools_of(object);
  return row;
}

PlainRow parse_plain_row(std::string_view text) {
  const OrderedJson object = parse_row(text);
  const auto field = [&](const char* name) {
    if (!object.contains(name) || !object[name].is_string()) {
      throw RowError(concat("has ", names_of(object),
                            ", but without a chat template must have the texts prompt and completion"));
    }
    return object[name].get<std::string>();
  };
  return {.form = kForms.back().name, .prompt = field("prompt"), .completion = field("completion")};
}

}  // namespace fsdp::data
