#pragma once

// Rows of data that are more than a text: from a JSON object to tokens and their parts.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// The part that a token has in a conversation. The values are those of files (token_turns.h).
enum class TokenPart : uint8_t {
  kContext = 0,        ///< what the assistant answers to, and what the template adds
  kAssistant = 1,      ///< of a turn of the assistant
  kLastTurn = 2,       ///< of its last turn in the conversation
  kDocumentStart = 3,  ///< the first token of a conversation, which nothing predicts
};

/// What is wrong with a row: follows "line 3 of chats.jsonl " or "row 3 of chats.parquet " in a message.
class RowError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thread-safe.
class RowEncoder {
 public:
  virtual ~RowEncoder() = default;
  /// The fields of a row that it looks at; a table needs one of them.
  virtual std::vector<std::string> columns() const = 0;
  /// Appends the tokens of one row, the text of a JSON object whose order counts, and for each its part. Throws
  /// RowError.
  virtual void encode(std::string_view row, std::vector<int64_t>& ids,
                      std::vector<TokenPart>& parts) const = 0;
};

}  // namespace fsdp::data
