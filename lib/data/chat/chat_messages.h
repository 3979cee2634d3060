#pragma once

// Messages of a conversation, changed from the names of OpenAI's or ShareGPT's form to what templates need.

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_jinja.h"

namespace fsdp::data {

/// A conversation, from a row in any form (chat_rows.h).
struct ChatRow {
  std::string_view form;  ///< the row's form and its fields, for messages; equal texts are the same form
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = nullptr;
  /// Whether the assistant's tokens of each message are learnt. OpenAI's "weight": 0 excludes a message. In a
  /// prompt that is a list of messages, none is learnt.
  std::vector<bool> learnt;
  bool has_weights = false;  ///< whether an assistant's message is excluded
};

/// Names of a message's fields, and of its roles.
enum class MessageNames {
  kOpenAi,    ///< role and content
  kShareGpt,  ///< from and value
};

/// Returns the names that the first of a list of messages has. kOpenAi if it is not such a list.
MessageNames names_in(const OrderedJson& messages);

/// Appends a message. It is changed as little as templates need: members that are null are removed, fields
/// and roles get OpenAI's names, thoughts get the name reasoning_content, as in transformers, contents of
/// several texts are joined, and arguments of tools that are a JSON text, as in OpenAI's form, become that
/// object, which templates expect. Throws RowError.
void add_message(const OrderedJson& given, MessageNames names, bool learnt, ChatRow& row);

/// Appends a list of messages, or a text as one message of `role`; null: a text is refused. `field` is the
/// name of the list in errors. Throws RowError.
void add_messages(const OrderedJson& given, const std::string& field, const char* role, bool learnt,
                  ChatRow& row);

/// Refuses other tools' keys that exclude a message from the loss, which would have no effect here. `has` is
/// the beginning of the error. Throws RowError.
void refuse_foreign_weight(const OrderedJson& object, const std::string& has);

/// Parses a JSON text with limits. Throws RowError, which begins with `where`.
OrderedJson parse_row_json(std::string_view text, const std::string& where);

}  // namespace fsdp::data
