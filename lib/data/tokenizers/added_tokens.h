#pragma once

// Added tokens: texts such as <|endoftext|> that are one token wherever they occur.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

/// The added tokens of a vocabulary, for searching texts. Thread-safe.
class AddedTokens {
 public:
  /// The text of a token with the white space that belongs to the match.
  struct Match {
    size_t begin = std::string_view::npos, end = std::string_view::npos;
    int64_t id = -1;
    size_t content_begin = std::string_view::npos;  ///< begin of the token itself, after white space
    bool is_open = false;  ///< whether following text could add white space to the match
  };

  explicit AddedTokens(const std::vector<Vocabulary::AddedToken>& tokens);

 private:
  struct TokenGroup {
    std::vector<Vocabulary::AddedToken> tokens;  ///< tokens sorted by content, without duplicates
    std::array<bool, 256> begins{};              ///< whether a token begins with the byte
    std::string only_byte;                       ///< the first byte, if all tokens have the same
  };

 public:
  /// Finds the tokens in one text, from its beginning to its end. Requires: both outlive the object.
  class Search {
   public:
    Search(const AddedTokens& tokens, std::string_view text) : tokens_(tokens), text_(text) {}

    /// Returns the next token, given that the text before `from` (the end of the previous token) is done: the
    /// leftmost token that is not normalized, and the longest at its position. A normalized token counts only
    /// before that one. As in tokenizers, a token within the white space of the previous match counts too:
    /// its match begins at `from` and may end before it.
    Match next(size_t from);

   private:
    struct FoundToken {
      size_t begin = std::string_view::npos, end = std::string_view::npos;
      const Vocabulary::AddedToken* token = nullptr;
    };
    FoundToken find_in(const TokenGroup& group, std::string_view text, size_t from) const;
    Match with_white_space(const FoundToken& found, std::string_view text, size_t from) const;

    const AddedTokens& tokens_;
    std::string_view text_;
    FoundToken plain_;
    bool is_known_ = false;                        ///< whether plain_ is up to date
    size_t plain_from_ = 0, normalized_from_ = 0;  ///< beginning of the next search of each group
  };

  /// Calls on_text(part, begins) for each part of `text` between the tokens, which may be empty, and appends
  /// the tokens' ids in between. `begins` is true for the first part.
  template <typename OnText>
  void cut_out(std::string_view text, std::vector<int64_t>& ids, const OnText& on_text) const {
    if (text.empty()) return;
    Search search(*this, text);
    for (size_t done = 0;;) {
      const Match token = search.next(done);
      on_text(text.substr(done, std::min(token.begin, text.size()) - done), done == 0);
      if (token.id < 0) return;
      ids.push_back(token.id);
      done = token.end;
    }
  }

  /// Whether a token's match includes white space before it.
  bool any_strips_left() const { return strips_left_; }

  /// Bytes of the longest token; 0 if there are none.
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  static const Vocabulary::AddedToken* longest_at(const TokenGroup& group, std::string_view text);

  TokenGroup plain_, normalized_;
  size_t longest_bytes_ = 0;
  bool strips_left_ = false;
};

}  // namespace fsdp::data
