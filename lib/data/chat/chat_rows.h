#pragma once

// Rows of conversations in the forms of public data sets: OpenAI's messages, ShareGPT, Alpaca, prompts with
// their completions.

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_messages.h"

namespace fsdp::data {

/// Returns the fields that rows of any form may have.
std::vector<std::string> chat_columns();

/// Parses a row in any form. Throws RowError.
ChatRow parse_chat_row(std::string_view row);

/// A row of two texts: a prompt and its completion.
struct PlainRow {
  std::string_view form;  ///< as in ChatRow
  std::string prompt, completion;
};
/// Parses such a row. Throws RowError for all other rows.
PlainRow parse_plain_row(std::string_view row);

}  // namespace fsdp::data
