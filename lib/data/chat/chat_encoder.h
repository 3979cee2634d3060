#pragma once

// Encoding of conversations as tokens.

#include <memory>
#include <string>

#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {

struct ChatOptions {
  std::string chat_template = {};   ///< name of the template, for find_chat_template()
  std::string chat_variables = {};  ///< variables for the template, a JSON object; empty: none
  /// Allows markers of the template for which the tokenizer has no token (chat_markers.h).
  bool spell_markers = false;
  int threads = 1;
  /// Whether the prompt begins with the tokenizer's tokens before texts. Used with kNoChatTemplate.
  bool begin_of_text = true;
  ProcessLimits limits = {};
};

/// Returns an encoder of rows in any form of conversations (chat_rows.h) through a chat template. With
/// kNoChatTemplate, prompts and completions are encoded unchanged, followed by the tokenizer's end of text. A
/// token is the assistant's if any part of it is, as in transformers. `tokenizer_name` is the name that the
/// tokenizer was made from. Throws as find_chat_template() and ChatTemplate do. encode() also throws what
/// MarkerCheck throws, unless the tokenizer is "bytes", which spells every marker. Requires: `tokenizer`
/// outlives the object.
std::unique_ptr<RowEncoder> make_chat_encoder(const ChatOptions& options, const Tokenizer& tokenizer,
                                              const std::string& tokenizer_name);

}  // namespace fsdp::data
