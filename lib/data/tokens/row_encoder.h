#pragma once

// Encoders of rows that are more than a text: from a JSON object to tokens and their parts.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// The part that a token has in a conversation. The values are those of files (token_turns.h). In preferences
/// (data/chat/preference_encoder.h), only answers count as the assistant's text, and the value is the rating.
/// The chosen answer of a pair is the first document, and the rejected one the second.
enum class TokenPart : uint8_t {
  kContext = 0,    ///< text that the assistant answers to, and text that the template adds
  kAssistant = 1,  ///< text of a turn of the assistant; in preferences: of a rejected or undesirable answer
  kLastTurn = 2,   ///< text of the assistant's last turn; in preferences: of a chosen or desirable answer
  kDocumentStart = 3,  ///< the first token of a conversation, which nothing predicts
};

/// Error in a row. The message follows "line 3 of chats.jsonl " or "row 3 of chats.parquet ".
class RowError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Encodes rows, such as conversations. Thread-safe.
class RowEncoder {
 public:
  virtual ~RowEncoder() = default;
  /// Fields of a row that the encoder reads. A table needs at least one of them.
  virtual std::vector<std::string> columns() const = 0;
  /// Appends the tokens of one row, and for each token its part. A row may become several documents, each of
  /// which begins with kDocumentStart. `row` is the text of a JSON object, whose order of fields counts.
  /// Returns the name of the row's form, a literal; all rows of a file must have the same. Throws RowError.
  virtual std::string_view encode(std::string_view row, std::vector<int64_t>& ids,
                                  std::vector<TokenPart>& parts) const = 0;
};

}  // namespace fsdp::data
