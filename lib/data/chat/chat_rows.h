#pragma once

// Rows of conversations: OpenAI's form ("messages"), and prompts with their completions.

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_jinja.h"

namespace fsdp::data {

struct ChatRow {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = nullptr;
  /// Whether the assistant's tokens of each message are learnt. OpenAI's "weight": 0 excludes a message. In a
  /// prompt that is a list of messages, none is learnt.
  std::vector<bool> learnt;
  bool has_weights = false;  ///< whether an assistant's message is excluded
};

/// Parses a row of messages. Messages are changed as little as templates need: members that are null are
/// removed, thoughts get the name reasoning_content, as in transformers, contents of several texts are
/// joined, and arguments of tools that are a JSON text, as in OpenAI's form, become that object, which
/// templates expect. Throws RowError.
ChatRow parse_chat_row(std::string_view row);

/// A row of two texts: a prompt and its completion.
struct PlainRow {
  std::string prompt, completion;
};
/// Parses such a row. Throws RowError for all other rows.
PlainRow parse_plain_row(std::string_view row);

}  // namespace fsdp::data
