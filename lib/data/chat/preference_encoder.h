#pragma once

// Encoding of preferences as tokens.

#include <memory>
#include <string>

#include "data/chat/chat_encoder.h"

namespace fsdp::data {

/// Returns an encoder of rows in any form of preferences (preference_rows.h). A pair becomes two documents,
/// first the prompt with the chosen answer, then the prompt with the rejected one; an answer with a label
/// becomes one. Each document has the tokens that make_chat_encoder() gives for the same conversation. The
/// assistant's tokens of an answer are kLastTurn if it is chosen or labelled true, and kAssistant otherwise.
/// Parameters and errors are those of make_chat_encoder().
std::unique_ptr<RowEncoder> make_preference_encoder(const ChatOptions& options, const Tokenizer& tokenizer,
                                                    const std::string& tokenizer_name);

}  // namespace fsdp::data
