#pragma once

// The map by which SentencePiece models normalize characters ("precompiled_charsmap"): a trie of sequences of
// bytes, made by Darts (a double array: Aoe, An efficient digital search algorithm, 1989), and what they
// become. Texts are mapped as Hugging Face's tokenizers does it: a grapheme of up to five bytes as a whole if
// the map has a beginning of it, and else character by character.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// Thread-safe.
class CharacterMap {
 public:
  /// `map` is the number of bytes of the trie, the trie, and the texts, each ended by a zero. Throws
  /// Error(kData) when it is not.
  explicit CharacterMap(std::string_view map);

  /// `text` must be valid UTF-8.
  std::string map(std::string_view text) const;

 private:
  std::optional<std::string_view> find(std::string_view key) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

/// The bytes that base64 stands for; nothing when it is none.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace fsdp::data
