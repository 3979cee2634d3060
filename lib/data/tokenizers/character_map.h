#pragma once

// The map by which SentencePiece models normalize characters ("precompiled_charsmap"): a trie of sequences of bytes,
// made by Darts (a double array: Aoe, An efficient digital search algorithm, 1989), and the texts that replace them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// Thread-safe.
class CharacterMap {
 public:
  /// `map` is the number of bytes of the trie, the trie, and the texts, each ended by a zero. Nothing when it is not
  /// such a map, or when a search in it could leave it: libsentencepiece does not check that.
  static std::optional<CharacterMap> of(std::string_view map);

  /// The text for the shortest key that `key` begins with.
  std::optional<std::string_view> find(std::string_view key) const;

 private:
  CharacterMap() = default;
  bool stays_inside() const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace fsdp::data
