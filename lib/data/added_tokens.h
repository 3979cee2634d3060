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

  /// The next one in text[from, text.size()): of those that are not normalized the leftmost, and of several
  /// there the longest; before it the leftmost of the normalized ones.
  Match find(std::string_view text, size_t from) const;

  /// Bytes of the longest; 0 when there are none.
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Group {
    std::vector<Vocabulary::AddedToken> tokens;  ///< the longest first
    std::array<bool, 256> begins{};                 ///< whether one begins with the byte
    std::string only_byte;                          ///< that byte when all begin with the same
  };
  static Match find_in(const Group& group, std::string_view text, size_t from);

  Group plain_, normalized_;
  size_t longest_bytes_ = 0;
};

}  // namespace fsdp::data
