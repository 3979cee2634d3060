#pragma once

// Texts that are one token wherever they stand, such as <|endoftext|>.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/vocabulary.h"

namespace fsdp::data {

/// Thread-safe.
class AddedTokens {
 public:
  struct Match {
    size_t begin = std::string_view::npos, end = std::string_view::npos;
    int64_t id = -1;
  };

  explicit AddedTokens(const std::vector<Vocabulary::AddedToken>& tokens);

  /// Finds the tokens in one text, from its beginning to its end. Both must outlive it.
  class Search {
   public:
    Search(const AddedTokens& tokens, std::string_view text) : tokens_(tokens), text_(text) {}

    /// The next token in text[from, text.size()): of those that are not normalized the leftmost, and of
    /// several at one place the longest; normalized ones count only before that one. `from` must not
    /// decrease.
    Match next(size_t from);

   private:
    const AddedTokens& tokens_;
    std::string_view text_;
    Match plain_;
    bool is_known_ = false;  ///< plain_ is
  };

  /// Calls on_text(part, begins) for each part of `text` between the tokens, which may be empty, and appends
  /// the tokens' ids in between. begins: the part is the first.
  template <typename OnText>
  void cut_out(std::string_view text, std::vector<int64_t>& ids, const OnText& on_text) const {
    Search search(*this, text);
    for (size_t done = 0; done < text.size();) {
      const Match token = search.next(done);
      on_text(text.substr(done, std::min(token.begin, text.size()) - done), done == 0);
      if (token.id < 0) return;
      ids.push_back(token.id);
      done = token.end;
    }
  }

  /// Bytes of the longest token; 0 when there are none.
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Group {
    std::vector<Vocabulary::AddedToken> tokens;  ///< sorted by content, each once
    std::array<bool, 256> begins{};              ///< whether a token begins with the byte
    std::string only_byte;                       ///< the first byte when all tokens have the same
  };
  static const Vocabulary::AddedToken* longest_at(const Group& group, std::string_view text);
  static Match find_in(const Group& group, std::string_view text, size_t from);

  Group plain_, normalized_;
  size_t longest_bytes_ = 0;
};

}  // namespace fsdp::data
