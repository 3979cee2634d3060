#pragma once

// Rows of preferences in the forms of public data sets: pairs of a chosen and a rejected answer to one prompt
// (DPO, ORPO, SimPO), and single answers with a label (KTO).

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_messages.h"

namespace fsdp::data {

/// Returns the fields that rows of any form may have.
std::vector<std::string> preference_columns();

/// A prompt and an answer to it. Only the answer's messages of the assistant are learnt.
struct RatedConversation {
  ChatRow conversation;
  bool preferred = false;  ///< whether the answer is the chosen one, or is labelled true
};

struct PreferenceRow {
  std::string_view form;                   ///< as in ChatRow
  std::vector<RatedConversation> answers;  ///< the chosen and the rejected one, or one with a label
};

/// Parses a row in any form except a pair of texts without a prompt, which has no messages. Throws RowError.
PreferenceRow parse_preference_row(std::string_view row);

/// A text that completes a prompt.
struct RatedCompletion {
  std::string text;
  bool preferred = false;  ///< as in RatedConversation
};

/// A row of texts.
struct PlainPreferenceRow {
  std::string_view form;  ///< as in ChatRow
  std::string prompt;
  std::vector<RatedCompletion> answers;  ///< as in PreferenceRow
};

/// Parses a row of texts: a prompt and its answers, or a pair of texts that begin alike. In such a pair, the
/// characters that both begin with are the prompt, as in TRL's extract_prompt(). Throws RowError for all
/// other rows.
PlainPreferenceRow parse_plain_preference_row(std::string_view row);

}  // namespace fsdp::data
