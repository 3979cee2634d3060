#include "data/chat/chat_rows.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/util/error.h"
#include "data/chat/row_fields.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {
namespace {

void read_messages(const OrderedJson& row, const std::string& list, ChatRow& to) {
  add_system_and_messages(row, row[list], list, nullptr, /*learnt=*/true, to);
}

void read_alpaca(const OrderedJson& row, const std::string& /*list*/, ChatRow& to) {
  add_instruction(row, /*learnt=*/true, to);
  add_text("assistant", row["output"], /*learnt=*/true, to);
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
    if (!field.empty() && !has_field(row, field)) return false;
  }
  return !form.names || names_in(row[std::string(form.fields[0])]) == *form.names;
}

const ChatForm& form_of(const OrderedJson& row) {
  const auto* form = std::ranges::find_if(kForms, [&](const ChatForm& each) { return fits(each, row); });
  if (form != kForms.end()) return *form;
  std::string known;
  for (const ChatForm& each : kForms) known += concat(known.empty() ? "" : ", ", each.name);
  throw RowError(
      concat("has ", names_of_fields(row), ", but must have those of a form of conversations: ", known));
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
  const OrderedJson object = parse_row_object(text);
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
  const OrderedJson object = parse_row_object(text);
  const auto field = [&](const char* name) {
    if (!object.contains(name) || !object[name].is_string()) {
      throw RowError(concat("has ", names_of_fields(object),
                            ", but without a chat template must have the texts prompt and completion"));
    }
    return object[name].get<std::string>();
  };
  return {.form = kForms.back().name, .prompt = field("prompt"), .completion = field("completion")};
}

}  // namespace fsdp::data
