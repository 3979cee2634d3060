#pragma once

// The models of Hugging Face's tokenizers, which turn a piece of text into ids, and how their vocabularies
// write bytes.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

/// Appends the ids of a piece of normalized text. Thread-safe.
using PieceModel = std::function<void(std::string_view piece, std::vector<int64_t>& ids)>;

/// Byte pair encoding (Sennrich, Haddow, Birch: Neural machine translation of rare words with subword units,
/// ACL 2016): of all pairs of neighbouring tokens the one that comes first in the list of merges becomes one
/// token, the leftmost of several, until no pair is in the list.
///
/// Over bytes, as in GPT-2: a piece begins as one token per byte. A byte without a token becomes the token for
/// unknown ones, or nothing where there is none. Throws Error(kData) when a merge takes or makes a token that the
/// vocabulary lacks.
PieceModel make_byte_level_bpe(const Vocabulary& vocabulary);
/// Over characters, as in Llama 2 and Mistral: a piece, which must be valid UTF-8, begins as one token per
/// character, or one for each of its bytes where the character has none. Throws Error(kData) when a merge
/// takes or makes a token that the vocabulary lacks.
PieceModel make_character_bpe(const Vocabulary& vocabulary);

/// The most probable sequence of pieces (Kudo: Subword regularization, ACL 2018), by Viterbi's algorithm. The
/// piece of text must be valid UTF-8. The model throws Error(kData) for a character that no piece has when
/// the vocabulary has no token for unknown ones.
PieceModel make_unigram(const Vocabulary& vocabulary);

/// The character that stands for a byte in byte-level vocabularies, as UTF-8: bytes that are printable in
/// Latin-1 stand for themselves, the others are U+0100, U+0101, ... in order (GPT-2's bytes_to_unicode).
const std::string& byte_symbol(unsigned char byte);

/// The bytes that the characters of a token stand for; nothing when one of them stands for none.
std::optional<std::string> symbols_to_bytes(std::string_view token);

/// The ids of the tokens <0x00> to <0xFF>, where the vocabulary has them.
std::array<std::optional<uint32_t>, 256> byte_tokens(const Vocabulary& vocabulary);

/// Remembers the ids of short pieces of text, since words recur. Each value of the hash has one place, so a
/// new piece replaces an old one. Not thread-safe.
class PieceCache {
 public:
  PieceCache() : entries_(kEntries) {}

  /// Appends the ids of a piece, by `model` when they are not known.
  void encode(const PieceModel& model, std::string_view piece, std::vector<int64_t>& ids);

 private:
  static constexpr size_t kEntries = 1 << 16;  // 4 MiB
  static constexpr size_t kPieceBytes = 30;
  struct alignas(64) Entry {
    std::array<char, kPieceBytes> piece;
    uint8_t bytes = 0;  // 0: not used
    uint8_t count = 0;
    std::array<uint32_t, 8> ids;
  };

  std::vector<Entry> entries_;
};

}  // namespace fsdp::data
