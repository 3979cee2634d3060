#pragma once

// A conversation with a model: its messages as the tokens of a prompt.

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"

namespace fsdp::data {

/// Not thread-safe. Requires: the tokenizer outlives the object.
class ChatSession {
 public:
  /// `system`: the text of the first message; empty: none, or the one that the template writes. Throws as
  /// ChatTemplate does.
  ChatSession(const Tokenizer& tokenizer, ChatTemplateSource source, const std::string& system);

  /// Adds a message of the user and returns the tokens that the model continues: all messages, and the
  /// beginning of an answer. If these are more than `most` tokens, the oldest questions and their answers are
  /// forgotten. Throws Error(kUsage) if the message alone has more, and Error(kData) for messages that the
  /// template refuses; the message is not added then.
  std::vector<int64_t> ask(const std::string& text, int64_t most);
  void answer(const std::string& text);

  /// Number of messages that ask() has forgotten since the session began.
  int64_t forgotten() const { return forgotten_; }

  /// The special tokens with which the template ends the assistant's answers. Nothing if it ends them with
  /// text.
  std::vector<int64_t> ends_of_answers() const;

 private:
  std::vector<int64_t> tokens_of(const OrderedJson& messages) const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  OrderedJson messages_ = OrderedJson::array();
  size_t kept_ = 0;  ///< messages at the beginning that are never forgotten: the system's
  int64_t forgotten_ = 0;
};

}  // namespace fsdp::data
