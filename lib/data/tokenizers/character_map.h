#pragma once

// The map by which SentencePiece models normalize characters ("precompiled_charsmap"): a trie of byte
// sequences, built by Darts (a double array: Aoe, An efficient digital search algorithm, 1989), and their
// replacements. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

class CharacterMap {
 public:
  /// Parses a map: the number of bytes of the trie, the trie, and the texts, each ended by a zero. Returns
  /// nothing if `map` is not such a map, or if a search could read outside of it, which libsentencepiece does
  /// not check.
  static std::optional<CharacterMap> of(std::string_view map);

  /// Returns the replacement of the shortest key that is a prefix of `key`.
  std::optional<std::string_view> find(std::string_view key) const;

 private:
  CharacterMap() = default;
  bool stays_inside() const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace fsdp::data
