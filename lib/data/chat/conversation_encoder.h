#pragma once

// Encoders of one conversation, which the encoders of rows share (chat_encoder.h, preference_encoder.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_encoder.h"
#include "data/chat/chat_markers.h"
#include "data/chat/chat_messages.h"
#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {

/// Returns the bytes of the text that each token represents. Nothing if the tokens are not these bytes one
/// after another, as with a tokenizer that normalizes.
std::optional<std::vector<TextSpan>> places_of(const Tokenizer& tokenizer, std::string_view text,
                                               const std::vector<int64_t>& ids);

/// Parts that the learnt turns of a conversation get.
struct TurnParts {
  TokenPart last = TokenPart::kLastTurn, earlier = TokenPart::kAssistant;
};

/// Encodes conversations through a chat template. Thread-safe.
class ConversationEncoder {
 public:
  /// Parameters and errors are those of make_chat_encoder().
  ConversationEncoder(const ChatOptions& options, const Tokenizer& tokenizer,
                      const std::string& tokenizer_name);

  /// Appends the tokens of a conversation, and for each token its part. Throws RowError.
  void append(const ChatRow& row, TurnParts turns, std::vector<int64_t>& ids,
              std::vector<TokenPart>& parts) const;

 private:
  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  std::unique_ptr<MarkerCheck> markers_;  ///< null if markers may be spelled as text
};

/// Encodes prompts and completions unchanged, for kNoChatTemplate. Thread-safe.
class CompletionEncoder {
 public:
  /// Requires: `tokenizer` outlives the object.
  CompletionEncoder(const ChatOptions& options, const Tokenizer& tokenizer);

  /// Appends the tokens of a prompt and its completion, and for each token its part, which is `part` in the
  /// completion. The tokenizer's end of text follows unless the completion ends with it. Throws RowError.
  void append(std::string_view prompt, std::string_view completion, TokenPart part, std::vector<int64_t>& ids,
              std::vector<TokenPart>& parts) const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<int64_t> begin_;  ///< tokens before each prompt
};

}  // namespace fsdp::data
