#pragma once

// Finds the assistant's turns in the output of a template without blocks {% generation %}.

#include <functional>
#include <string>
#include <vector>

#include "data/chat/chat_jinja.h"

namespace fsdp::data {

/// The text that a template wrote for a message of the assistant, from the end of the generation prompt to
/// the end of the turn: the text that a model generates.
struct AssistantTurn {
  TextSpan span;
  int64_t message = -1;  ///< index of the message; -1: unknown
};

/// Renders messages without (false) or with (true) a generation prompt after them. Throws TemplateError.
using RenderMessages = std::function<std::string(const OrderedJson& messages, bool add_generation_prompt)>;

/// Returns the turns in `whole`, which is render(messages, false), in order. A turn begins where the messages
/// before it with a generation prompt end, and ends where the messages up to it end, if both texts are
/// prefixes of `whole`. Templates that write a message differently when others follow (Qwen3 drops earlier
/// thoughts, Mistral puts the system prompt before the last message) are also rendered with other words in
/// the message's place: the difference is the message. White space at the end of a turn does not belong to
/// it, unless nothing else marks the end. Text that is written only at the end of a conversation (Phi-3.5's
/// end of text) does not belong to a turn either. Throws TemplateError if a turn cannot be found.
std::vector<AssistantTurn> find_assistant_turns(const OrderedJson& messages, const std::string& whole,
                                                const RenderMessages& render);

}  // namespace fsdp::data
