#pragma once

// Fields that rows of conversations have in several forms.

#include <string>
#include <string_view>

#include "data/chat/chat_messages.h"

namespace fsdp::data {

/// Parses a row. Throws RowError unless it is an object.
OrderedJson parse_row_object(std::string_view text);

/// Whether the row has a value. A table has null in the columns for which a row has no value.
bool has_field(const OrderedJson& row, std::string_view field);

/// Returns the text in a field; "" if the row lacks it. Throws RowError for another value.
std::string text_in(const OrderedJson& row, std::string_view field);

/// Returns `the fields "a", "b"`, for messages.
std::string names_of_fields(const OrderedJson& row);

/// Appends a text as a message of `role`. Throws RowError for another value.
void add_text(const char* role, const OrderedJson& text, bool learnt, ChatRow& to);

/// Appends the field system and a list of messages. Messages that begin with one of the system replace the
/// field, as in axolotl and LLaMA-Factory. `name` and `role` are those of add_messages(). Throws RowError.
void add_system_and_messages(const OrderedJson& row, const OrderedJson& messages, const std::string& name,
                             const char* role, bool learnt, ChatRow& to);

/// Appends system, history, instruction and input, as LLaMA-Factory does: the input follows the instruction
/// in a line of its own, and history, a list of earlier prompts and answers, precedes both. Throws RowError.
void add_instruction(const OrderedJson& row, bool learnt, ChatRow& to);

/// Returns the field tools, a list or the JSON text of a list; null if the row lacks it. Throws RowError.
OrderedJson tools_of(const OrderedJson& row);

}  // namespace fsdp::data
