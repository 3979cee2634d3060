#pragma once

// Conversations as tokens.

#include <memory>
#include <optional>
#include <string>

#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {

struct ChatOptions {
  std::string chat_template = {};   ///< as find_chat_template() takes it
  std::string chat_variables = {};  ///< a JSON object; empty: none
  /// Allows markers of the template that the tokenizer has no token for (chat_markers.h).
  bool spell_markers = false;
  int threads = 1;
  /// Whether the tokens that the tokenizer puts before texts are put before the prompt, with kNoChatTemplate.
  bool begin_of_text = true;
  ProcessLimits limits = {};
};

/// Rows of messages, or of prompt and completion, through a chat template; with kNoChatTemplate, prompts and their
/// completions as they are, with the tokenizer's end of text. A token is the assistant's if any of it is, as in
/// transformers. `tokenizer` must outlive the object; `tokenizer_name` is what it was made from. Throws as
/// find_chat_template() and ChatTemplate do; encode() also throws what MarkerCheck does, unless the tokenizer is "bytes",
/// which spells everything.
std::unique_ptr<RowEncoder> make_chat_encoder(const ChatOptions& options, const Tokenizer& tokenizer,
                                              const std::string& tokenizer_name);

/// Where tokens are in their text: of each the bytes that it stands for. Nothing where the tokens are not those
/// bytes one after another, as with a tokenizer that normalizes.
std::optional<std::vector<TextSpan>> places_of(const Tokenizer& tokenizer, std::string_view text,
                                               const std::vector<int64_t>& ids);

}  // namespace fsdp::data
