#include "data/chat/chat_rows.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/util/error.h"
#include "base/util/json.h"
#include "base/util/text.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {
namespace {

constexpr int kMaxRowDepth = 64;

[[noreturn]] void refuse(const std::string& found) { throw RowError(found); }

OrderedJson parse_row(std::string_view row) {
  try {
    util::parse_json(row,
                     {.deepest_level = kMaxRowDepth, .unique_keys = false});  // has limits, and sorts keys
  } catch (const util::JsonError& error) {
    refuse(concat(error.what(), ", but must be a JSON object with messages, or prompt and completion"));
  }
  OrderedJson object = parse_chat_json(row);
  if (!object.is_object()) {
    refuse(concat("is a JSON ", object.type_name(),
                  ", but must be an object with messages, or prompt and completion"));
  }
  return object;
}

std::string names_of(const OrderedJson& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back("\"" + item.key() + "\"");
  return names.empty() ? "no fields" : "the fields " + util::join(names, ", ");
}

/// Returns a list of texts as one text.
OrderedJson joined_content(const OrderedJson& content, const std::string& where) {
  if (content.is_string()) return content;
  if (!content.is_array()) {
    refuse(concat(where, " has a content that is a ", content.type_name(),
                  ", but must be a text or a list of texts"));
  }
  std::string text;
  for (const OrderedJson& part : content) {
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : "";
    if (type != "text" || !part.contains("text") || !part["text"].is_string()) {
      refuse(concat(where, " has a content of type \"", type,
                    "\", but only text is supported; leave the row out"));
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

void parse_arguments(OrderedJson& calls, const std::string& where) {
  if (!calls.is_array()) refuse(concat(where, " has tool_calls that are not a list"));
  for (OrderedJson& call : calls) {
    if (!call.is_object()) refuse(concat(where, " has a tool call that is not an object"));
    OrderedJson& function =
        call.contains("function") && call["function"].is_object() ? call["function"] : call;
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const auto text = function["arguments"].get<std::string>();
    try {
      util::parse_json(text, {.deepest_level = kMaxRowDepth, .unique_keys = false});
      OrderedJson arguments = parse_chat_json(text);
      if (arguments.is_object()) function["arguments"] = std::move(arguments);
    } catch (const util::JsonError&) {
      // A text that is not JSON is left for the template to print unchanged.
    }
  }
}

void name_thoughts(OrderedJson& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (found == message.end()) continue;
    const OrderedJson thoughts = *found;
    if (!message.contains("thinking")) message["thinking"] = thoughts;
    message["reasoning_content"] = thoughts;
    return;
  }
}

/// Refuses other tools' keys that exclude a message from the loss, which would have no effect here.
void refuse_foreign_weight(const OrderedJson& object, const std::string& has) {
  for (const char* key : {"train", "training", "trainable", "loss"}) {
    const auto found = object.find(key);
    if (found == object.end() || (*found != false && *found != 0)) continue;
    refuse(concat(
        has, " \"", key, "\": ", found->dump(),
        ", which is not read; write \"weight\": 0 into each message that is to be left out of the loss"));
  }
  for (const char* key : {"train_detail", "training_detail"}) {
    if (object.contains(key)) {
      refuse(concat(has, " \"", key,
                    "\", but parts of a message cannot be left out of the loss; write \"weight\": 0 "
                    "to leave out the message"));
    }
  }
}

void add_message(const OrderedJson& given, bool learnt, ChatRow& row) {
  const std::string where = concat("message ", row.messages.size() + 1);
  if (!given.is_object())
    refuse(concat(where, " is a ", given.type_name(), ", but must be an object with a role"));
  OrderedJson message = OrderedJson::object();
  for (const auto& [key, value] : given.items()) {
    if (!value.is_null()) message[key] = value;
  }
  refuse_foreign_weight(message, where + " has");
  const std::string role =
      message.contains("role") && message["role"].is_string() ? message["role"].get<std::string>() : "";
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    refuse(concat(where, " has ", role.empty() ? "no role" : "the role \"" + role + "\"",
                  ", but expected system, developer, user, assistant or tool"));
  }
  const bool is_assistant = role == "assistant";
  if (message.contains("content")) {
    message["content"] = joined_content(message["content"], where);
  } else if (!is_assistant || !message.contains("tool_calls")) {
    refuse(concat(where, " (", role, ") has no content"));
  }
  if (message.contains("tool_calls")) parse_arguments(message["tool_calls"], where);
  if (message.contains("weight")) {
    const OrderedJson& weight = message["weight"];
    if (!weight.is_number() || (weight != 0 && weight != 1)) {
      refuse(concat(where, " has the weight ", weight.dump(), ", but expected 0 or 1"));
    }
    learnt = learnt && weight == 1;
    message.erase("weight");
  }
  name_thoughts(message);
  row.has_weights |= is_assistant && !learnt;
  row.learnt.push_back(is_assistant && learnt);
  row.messages.push_back(std::move(message));
}

/// Returns a list of messages, or a text as one message.
void add_messages(const OrderedJson& given, const char* field, const char* role, bool learnt, ChatRow& row) {
  if (given.is_string() && role != nullptr) {
    return add_message({{"role", role}, {"content", given}}, learnt, row);
  }
  if (!given.is_array() || given.empty()) {
    refuse(concat("has ", field, " that is ", given.is_array() ? "empty" : concat("a ", given.type_name()),
                  ", but must be a list of messages", role == nullptr ? "" : " or a text"));
  }
  for (const OrderedJson& message : given) add_message(message, learnt, row);
}

}  // namespace

ChatRow parse_chat_row(std::string_view text) {
  const OrderedJson object = parse_row(text);
  refuse_foreign_weight(object, "has");
  ChatRow row;
  // A table has null in the columns for which a row has no value.
  const auto has = [&object](const char* field) {
    return object.contains(field) && !object[field].is_null();
  };
  if (has("messages")) {
    add_messages(object["messages"], "messages", nullptr, /*learnt=*/true, row);
  } else if (has("prompt") && has("completion")) {
    add_messages(object["prompt"], "a prompt", "user", /*learnt=*/false, row);
    add_messages(object["completion"], "a completion", "assistant", /*learnt=*/true, row);
  } else {
    refuse(concat("has ", names_of(object), ", but must have messages, or prompt and completion"));
  }
  if (std::ranges::find(row.learnt, true) == row.learnt.end()) {
    refuse("has no message of the assistant to learn from");
  }
  if (has("tools")) {
    if (!object["tools"].is_array()) refuse("has tools that are not a list");
    row.tools = object["tools"];
  }
  return row;
}

PlainRow parse_plain_row(std::string_view text) {
  const OrderedJson object = parse_row(text);
  const auto field = [&](const char* name) {
    if (!object.contains(name) || !object[name].is_string()) {
      refuse(concat("has ", names_of(object),
                    ", but without a chat template must have the texts prompt and completion"));
    }
    return object[name].get<std::string>();
  };
  return {.prompt = field("prompt"), .completion = field("completion")};
}

}  // namespace fsdp::data
