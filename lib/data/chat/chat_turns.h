#pragma once

// Where a template without blocks {% generation %} writes the assistant's turns.

#include <functional>
#include <string>
#include <vector>

#include "data/chat/chat_jinja.h"

namespace fsdp::data {

/// What a template wrote for a message of the assistant, from behind the generation prompt to the end of the turn:
/// what a model generates.
struct AssistantTurn {
  TextSpan span;
  int64_t message = -1;  ///< its index; -1: unknown
};

/// Renders messages without (false) or with (true) a generation prompt behind them. Throws TemplateError.
using RenderMessages = std::function<std::string(const OrderedJson& messages, bool add_generation_prompt)>;

/// The turns in `whole`, which is render(messages, false), in order. A turn begins where the messages before it with
/// a generation prompt end, and ends where the messages up to it end, if both texts are the beginning of `whole`.
/// Templates that write a message in another way when others follow (Qwen3 drops earlier thoughts, Mistral puts the
/// system prompt before the last message) are also rendered with other words in the message's place: the difference
/// is the message. White space at the end of a turn does not belong to it, unless nothing else marks the end, nor does
/// what is written only at the end of a conversation (Phi-3.5's end of text).
/// Throws TemplateError where a turn cannot be found.
std::vector<AssistantTurn> find_assistant_turns(const OrderedJson& messages, const std::string& whole,
                                                const RenderMessages& render);

}  // namespace fsdp::data
