#pragma once

// Sources of chat templates: the files of a tokenizer, the user's file, or a preset.

#include <string>
#include <vector>

#include "data/chat/chat_template.h"

namespace fsdp::data {

/// The preset without a template: rows of a prompt and its completion, encoded unchanged.
inline constexpr const char* kNoChatTemplate = "none";

/// Names of the presets: chatml, llama3, none.
std::vector<std::string> chat_template_presets();

/// Finds a chat template. `name` is a preset, a file of Jinja, a tokenizer_config.json, or a folder with
/// chat_template.jinja or tokenizer_config.json; empty: the folder of `tokenizer`, a name for
/// make_tokenizer(). In a tokenizer_config.json `chat_template` is a text, or a list of which "default" is
/// taken. The special tokens are those of the tokenizer_config.json beside the tokenizer, if there is one.
/// `variables` is a JSON object of more variables for the template. Throws Error(kUsage) and Error(kData).
/// Requires: `name` is not kNoChatTemplate.
ChatTemplateSource find_chat_template(const std::string& name, const std::string& tokenizer,
                                      const std::string& variables = "");

}  // namespace fsdp::data
