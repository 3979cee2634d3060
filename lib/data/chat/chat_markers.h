#pragma once

// Markers that a chat template writes, such as <|im_start|>. The tokenizer must have each as one token:
// spelled out, they would be pieces of text that the model has never seen in this position.

#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_json.h"
#include "data/tokenizers/tokenizer.h"

namespace fsdp::data {

/// Returns the parts of a text that look like a special token, each once: <|name|>, <start_of_turn>, <s>,
/// </s>, [INST] and the like. Tags such as <tools> are not included, since templates write them as text.
std::vector<std::string> markers_in(std::string_view text);

/// Compares the markers of rendered conversations with a vocabulary. Thread-safe.
class MarkerCheck {
 public:
  /// `template_name` is the template's name in messages.
  MarkerCheck(const Tokenizer& tokenizer, std::string template_name)
      : tokenizer_(tokenizer), template_name_(std::move(template_name)) {}

  /// Throws Error(kData) for markers in `rendered` that are not one token and not in the row's own texts.
  void check(std::string_view rendered, const OrderedJson& messages, const OrderedJson& tools);

 private:
  const Tokenizer& tokenizer_;
  const std::string template_name_;
  std::mutex mutex_;
  std::set<std::string> tokens_;  ///< markers that are one token
};

}  // namespace fsdp::data
