#pragma once

// Where chat templates come from: the files of a tokenizer, a file of one's own, or a preset.

#include <string>
#include <vector>

#include "data/chat/chat_template.h"

namespace fsdp::data {

/// The preset of conversations without a template: rows of a prompt and its completion, as they are.
inline constexpr const char* kNoChatTemplate = "none";

/// Presets: chatml, llama3, none.
std::vector<std::string> chat_template_presets();

/// `name`: a preset, a file of Jinja, a tokenizer_config.json, or a folder that has chat_template.jinja or
/// tokenizer_config.json; empty: the folder of `tokenizer`, as make_tokenizer() takes it. In a
/// tokenizer_config.json `chat_template` is a text, or a list of which "default" is taken. The special tokens are
/// those of the tokenizer_config.json beside the tokenizer, if there is one. `variables` is a JSON object of more
/// variables for the template. Throws Error(kUsage) and Error(kData). Not for kNoChatTemplate.
ChatTemplateSource find_chat_template(const std::string& name, const std::string& tokenizer,
                                      const std::string& variables = "");

}  // namespace fsdp::data
