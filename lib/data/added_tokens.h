#pragma once

// Texts that are one token wherever they stand, such as <|endoftext|>.

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

  /// The tokens in one text, from its beginning to its end. Both must outlive it.
  class Search {
   public:
    Search(const AddedTokens& tokens, std::string_view text) : tokens_(tokens), text_(text) {}

    /// The next one in text[from, text.size()): of those that are not normalized the leftmost, and of several
    /// there the longest; before it the leftmost of the normalized ones. `from` must not fall.
    Match next(size_t from);

   private:
    const AddedTokens& tokens_;
    std::string_view text_;
    Match plain_;
    bool is_known_ = false;  ///< plain_ is
  };

  /// Bytes of the longest; 0 when there are none.
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Group {
    std::vector<Vocabulary::AddedToken> tokens;  ///< sorted by content, each once
    std::array<bool, 256> begins{};              ///< whether one begins with the byte
    std::string only_byte;                       ///< that byte when all begin with the same
  };
  static const Vocabulary::AddedToken* longest_at(const Group& group, std::string_view text);
  static Match find_in(const Group& group, std::string_view text, size_t from);

  Group plain_, normalized_;
  size_t longest_bytes_ = 0;
};

}  // namespace fsdp::data
