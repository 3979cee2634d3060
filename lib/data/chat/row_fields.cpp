#include "data/chat/row_fields.h"

#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {
namespace {

void add_system(const OrderedJson& row, ChatRow& to) {
  if (const std::string text = text_in(row, "system"); !text.empty())
    add_text("system", text, /*learnt=*/false, to);
}

bool begins_with_system(const OrderedJson& messages) {
  if (!messages.is_array() || messages.empty() || !messages[0].is_object()) return false;
  const char* const role_field = names_in(messages) == MessageNames::kShareGpt ? "from" : "role";
  return messages[0].value(role_field, OrderedJson()) == "system";
}

}  // namespace

OrderedJson parse_row_object(std::string_view text) {
  OrderedJson row = parse_row_json(text, "");
  if (!row.is_object())
    throw RowError(concat("is a JSON ", row.type_name(), ", but must be an object, a conversation"));
  refuse_foreign_weight(row, "has");
  return row;
}

bool has_field(const OrderedJson& row, std::string_view field) {
  const auto found = row.find(field);
  return found != row.end() && !found->is_null();
}

std::string text_in(const OrderedJson& row, std::string_view field) {
  if (!has_field(row, field)) return "";
  const OrderedJson& value = row[std::string(field)];
  if (!value.is_string())
    throw RowError(concat("has ", field, " that is a ", value.type_name(), ", but must be a text"));
  return value.get<std::string>();
}

std::string names_of_fields(const OrderedJson& row) {
  std::vector<std::string> names;
  for (const auto& item : row.items()) names.push_back("\"" + item.key() + "\"");
  return names.empty() ? "no fields" : "the fields " + util::join(names, ", ");
}

void add_text(const char* role, const OrderedJson& text, bool learnt, ChatRow& to) {
  if (!text.is_string()) throw RowError(concat("has a text of the ", role, " that is a ", text.type_name()));
  add_message({{"role", role}, {"content", text}}, MessageNames::kOpenAi, learnt, to);
}

void add_system_and_messages(const OrderedJson& row, const OrderedJson& messages, const std::string& name,
                             const char* role, bool learnt, ChatRow& to) {
  if (!begins_with_system(messages)) add_system(row, to);
  add_messages(messages, name, role, learnt, to);
}

void add_instruction(const OrderedJson& row, bool learnt, ChatRow& to) {
  add_system(row, to);
  if (has_field(row, "history")) {
    const OrderedJson& history = row["history"];
    if (!history.is_array()) throw RowError(concat("has history that is a ", history.type_name()));
    for (const OrderedJson& turn : history) {
      if (!turn.is_array() || turn.size() != 2) {
        throw RowError("has history that is not a list of pairs, each a prompt and its answer");
      }
      add_text("user", turn[0], learnt, to);
      add_text("assistant", turn[1], learnt, to);
    }
  }
  std::string prompt = text_in(row, "instruction");
  const std::string input = text_in(row, "input");
  if (!prompt.empty() && !input.empty()) prompt += "\n";
  add_text("user", prompt + input, learnt, to);
}

OrderedJson tools_of(const OrderedJson& row) {
  if (!has_field(row, "tools")) return nullptr;
  OrderedJson tools = row["tools"];
  if (tools == "") return nullptr;
  // Many data sets have the list as a JSON text, since a table's column has only one type.
  if (tools.is_string()) tools = parse_row_json(tools.get<std::string>(), "has tools, a text that");
  if (!tools.is_array()) throw RowError("has tools that are not a list");
  return tools;
}

}  // namespace fsdp::data
