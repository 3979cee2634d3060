#pragma once

// Texts that are one token wherever they stand, such as <|endoftext|>.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

/// Thread-safe.
class AddedTokens {
 public:
  /// The text of a token, with the white space that it takes along.
  struct Match {
    size_t begin = std::string_view::npos, end = std::string_view::npos;
    int64_t id = -1;
    size_t content_begin = std::string_view::npos;  ///< behind the white space before it
    bool is_open = false;  ///< were more text to follow, it might take more white space along
  };

  explicit AddedTokens(const std::vector<Vocabulary::AddedToken>& tokens);

 private:
  struct Group {
    std::vector<Vocabulary::AddedToken> tokens;  ///< sorted by content, each once
    std::array<bool, 256> begins{};              ///< whether a token begins with the byte
    std::string only_byte;                       ///< the first byte when all tokens have the same
  };

 public:
  /// Finds the tokens in one text, from its beginning to its end. Both must outlive it.
  class Search {
   public:
    Search(const AddedTokens& tokens, std::string_view text) : tokens_(tokens), text_(text) {}

    /// The next token, where the text before `from`, the end of the one before, is dealt with: of those that
    /// are not normalized the leftmost, and of several at one place the longest; normalized ones count only
    /// before that one. As in tokenizers, a token within the white space that the one before took along counts
    /// too: it then begins at `from` and may end before it.
    Match next(size_t from);

   private:
    struct Found {
      size_t begin = std::string_view::npos, end = std::string_view::npos;
      const Vocabulary::AddedToken* token = nullptr;
    };
    Found find_in(const Group& group, std::string_view text, size_t from) const;
    Match with_white_space(const Found& found, std::string_view text, size_t from) const;

    const AddedTokens& tokens_;
    std::string_view text_;
    Found plain_;
    bool is_known_ = false;                        ///< plain_ is
    size_t plain_from_ = 0, normalized_from_ = 0;  ///< where the next search of each group begins
  };

  /// Calls on_text(part, begins) for each part of `text` between the tokens, which may be empty, and appends
  /// the tokens' ids in between. begins: the part is the first.
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

  /// Whether a token takes white space before it along.
  bool any_strips_left() const { return strips_left_; }

  /// Bytes of the longest token; 0 when there are none.
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  static const Vocabulary::AddedToken* longest_at(const Group& group, std::string_view text);

  Group plain_, normalized_;
  size_t longest_bytes_ = 0;
  bool strips_left_ = false;
};

}  // namespace fsdp::data
