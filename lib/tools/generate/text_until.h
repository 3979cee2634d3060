#pragma once

// A text that grows token by token and ends before the first of several strings.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace fsdp::generate {

/// Returns a decoder of what follows these tokens: tokens stand for other bytes at the beginning of a text
/// than within it.
data::TextDecoder decoder_after(const data::Tokenizer& tokenizer, const std::vector<int64_t>& ids);

class TextUntil {
 public:
  /// stops: none of which is empty
  TextUntil(data::TextDecoder decoder, std::vector<std::string> stops)
      : decoder_(std::move(decoder)), stops_(std::move(stops)) {}

  void push(int64_t id);
  /// Whether one of the stops has been found: what follows is ignored.
  bool has_ended() const { return has_ended_; }
  /// The tokens up to then.
  size_t tokens() const { return tokens_; }
  const std::string& text() const { return text_; }
  /// Adds the bytes of a character that was never completed, and returns the text.
  const std::string& finish();

 private:
  void append(const std::string& text);

  data::TextDecoder decoder_;
  std::vector<std::string> stops_;
  std::string text_;
  size_t tokens_ = 0;
  bool has_ended_ = false;
};

}  // namespace fsdp::generate
