#include "data/chat/chat_messages.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/util/error.h"
#include "base/util/json.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {
namespace {

constexpr int kMaxRowDepth = 64;

[[noreturn]] void refuse(const std::string& found) { throw RowError(found); }

/// A name of a role. OpenAI's form has only names that are the role itself.
struct RoleName {
  std::string_view name, role;
};
constexpr std::array<RoleName, 14> kRoles = {{
    {"system", "system"},
    {"developer", "developer"},
    {"user", "user"},
    {"assistant", "assistant"},
    {"tool", "tool"},
    {"human", "user"},
    {"gpt", "assistant"},
    {"chatgpt", "assistant"},
    {"bing", "assistant"},
    {"bard", "assistant"},
    {"model", "assistant"},
    {"function_call", "assistant"},
    {"observation", "tool"},
    {"function_response", "tool"},
}};

bool is_name_in(MessageNames names, const RoleName& role) {
  return names == MessageNames::kShareGpt || role.name == role.role;
}

/// Returns the role that a name stands for.
std::string_view role_named(const std::string& name, MessageNames names, const std::string& where) {
  std::string known, last;
  for (const RoleName& role : kRoles) {
    if (!is_name_in(names, role)) continue;
    if (role.name == name) return role.role;
    if (!last.empty()) known += (known.empty() ? "" : ", ") + last;
    last = role.name;
  }
  refuse(concat(where, " has the role \"", name, "\", but expected ", known, " or ", last));
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
    try {
      OrderedJson arguments = parse_row_json(function["arguments"].get_ref<const std::string&>(), where);
      if (arguments.is_object()) function["arguments"] = std::move(arguments);
    } catch (const RowError&) {
      // A text that is not JSON is left for the template to print unchanged.
    }
  }
}

/// Returns the tool_calls of ShareGPT's function_call, whose content is the JSON of one call or of several.
OrderedJson calls_in(const OrderedJson& content, const std::string& where) {
  OrderedJson calls =
      content.is_string() ? parse_row_json(content.get_ref<const std::string&>(), where) : content;
  if (!calls.is_array()) calls = OrderedJson::array({std::move(calls)});
  OrderedJson result = OrderedJson::array();
  for (OrderedJson& call : calls) {
    if (!call.is_object() || !call.contains("name")) {
      refuse(
          concat(where, " (function_call) is no JSON object with a name and arguments, nor a list of them"));
    }
    result.push_back({{"type", "function"}, {"function", std::move(call)}});
  }
  return result;
}

/// Returns the message without members that are null, with its fields and its role by OpenAI's names.
OrderedJson named_message(const OrderedJson& given, MessageNames names, const std::string& where) {
  const bool is_sharegpt = names == MessageNames::kShareGpt;
  const std::string role_field = is_sharegpt ? "from" : "role",
                    content_field = is_sharegpt ? "value" : "content";
  OrderedJson message = OrderedJson::object();
  for (const auto& [key, value] : given.items()) {
    if (!value.is_null())
      message[key == role_field ? "role" : key == content_field ? "content" : key] = value;
  }
  if (!given.contains(role_field) || !message["role"].is_string() || message["role"] == "") {
    refuse(concat(where, " has no ", role_field));
  }
  const auto name = message["role"].get<std::string>();
  message["role"] = role_named(name, names, where);
  if (name == "function_call" && message.contains("content")) {
    message["tool_calls"] = calls_in(message["content"], where);
    message.erase("content");
  }
  return message;
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

}  // namespace

MessageNames names_in(const OrderedJson& messages) {
  if (!messages.is_array() || messages.empty() || !messages[0].is_object()) return MessageNames::kOpenAi;
  const OrderedJson& first = messages[0];
  return first.contains("from") && !first.contains("role") ? MessageNames::kShareGpt : MessageNames::kOpenAi;
}

OrderedJson parse_row_json(std::string_view text, const std::string& where) {
  try {
    // Enforces the limits, unlike the parser below, and sorts keys.
    util::parse_json(text, {.deepest_level = kMaxRowDepth, .unique_keys = false});
  } catch (const util::JsonError& error) {
    refuse(concat(where, where.empty() ? "" : " ", error.what()));
  }
  return parse_chat_json(text);
}

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

void add_message(const OrderedJson& given, MessageNames names, bool learnt, ChatRow& row) {
  const std::string where = concat("message ", row.messages.size() + 1);
  if (!given.is_object())
    refuse(concat(where, " is a ", given.type_name(), ", but must be an object with a role"));
  OrderedJson message = named_message(given, names, where);
  refuse_foreign_weight(message, where + " has");
  const auto role = message["role"].get<std::string>();
  const bool is_assistant = role == "assistant";
  if (message.contains("function_call")) {
    refuse(concat(where,
                  " has a function_call, OpenAI's old form, which templates do not know; write tool_calls"));
  }
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

void add_messages(const OrderedJson& given, const std::string& field, const char* role, bool learnt,
                  ChatRow& row) {
  if (given.is_string() && role != nullptr) {
    return add_message({{"role", role}, {"content", given}}, MessageNames::kOpenAi, learnt, row);
  }
  if (!given.is_array() || given.empty()) {
    refuse(concat("has ", field, " that is ", given.is_array() ? "empty" : concat("a ", given.type_name()),
                  ", but must be a list of messages", role == nullptr ? "" : " or a text"));
  }
  const MessageNames names = names_in(given);
  for (const OrderedJson& message : given) add_message(message, names, learnt, row);
}

}  // namespace fsdp::data
