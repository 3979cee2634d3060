#pragma once

// Adds the markers of a chat template to a tokenizer that has no tokens for them.

#include <filesystem>
#include <string>
#include <vector>

#include "data/chat/chat_encoder.h"

namespace fsdp::data {

/// A token that was added to a tokenizer.
struct AddedMarker {
  std::string text;
  int64_t id = 0;
};

/// Adds the markers that the chat template of `options` writes around messages (markers_in()) and that
/// `tokenizer`, a tokenizer.json or its folder, has no token for. Writes to `folder` a tokenizer.json and a
/// tokenizer_config.json that have them, and the template. Returns the tokens; if there are none, it writes
/// nothing. Throws Error(kUsage) for other tokenizers,
/// Error(kData) for a template that cannot be rendered, and as make_tokenizer() and find_chat_template() do.
std::vector<AddedMarker> add_markers(const ChatOptions& options, const std::string& tokenizer,
                                     const std::filesystem::path& folder);

}  // namespace fsdp::data
