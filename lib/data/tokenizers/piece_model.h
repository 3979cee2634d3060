#pragma once

// The models of Hugging Face's tokenizers, which turn a piece of text into ids, and the form in which their
// vocabularies write bytes.

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

/// Returns byte pair encoding (Sennrich, Haddow, Birch: Neural machine translation of rare words with subword
/// units, ACL 2016). Of all pairs of neighbouring tokens, the pair that is first in the list of merges
/// becomes one token, the leftmost of equal pairs, until no pair is in the list.
///
/// This one is over bytes, as in GPT-2: a piece begins as one token per byte. A byte without a token becomes
/// the unknown token, or nothing if there is none. Throws Error(kData) if a merge takes or makes a token that
/// the vocabulary lacks.
PieceModel make_byte_level_bpe(const Vocabulary& vocabulary);
/// Returns byte pair encoding over characters, as in Llama 2 and Mistral. A piece, which must be valid UTF-8,
/// begins as one token per character, or one per byte for a character without a token. Throws Error(kData) if
/// a merge takes or makes a token that the vocabulary lacks.
PieceModel make_character_bpe(const Vocabulary& vocabulary);

/// Returns the model that finds the most probable sequence of pieces (Kudo: Subword regularization, ACL 2018)
/// by Viterbi's algorithm. The piece of text must be valid UTF-8. The model throws Error(kData) for a
/// character that is in no piece if the vocabulary has no unknown token.
PieceModel make_unigram(const Vocabulary& vocabulary);

/// Returns the character that represents a byte in byte-level vocabularies, as UTF-8: bytes that are
/// printable in Latin-1 represent themselves, the others are U+0100, U+0101, ... in order (GPT-2's
/// bytes_to_unicode).
const std::string& byte_symbol(unsigned char byte);

/// Returns the bytes that the characters of a token represent; nothing if a character represents none.
std::optional<std::string> symbols_to_bytes(std::string_view token);

/// Returns the ids of the tokens <0x00> to <0xFF>, as far as the vocabulary has them.
std::array<std::optional<uint32_t>, 256> byte_tokens(const Vocabulary& vocabulary);

/// Caches the ids of short pieces of text, since words recur. Each value of the hash has one entry, so a new
/// piece replaces an old one. Not thread-safe.
class PieceCache {
 public:
  PieceCache() : entries_(kEntries) {}

  /// Appends the ids of a piece, which `model` computes if they are not cached.
  void encode(const PieceModel& model, std::string_view piece, std::vector<int64_t>& ids);

 private:
  static constexpr size_t kEntries = 1 << 16;  // 4 MiB
  static constexpr size_t kPieceBytes = 30;
  struct alignas(64) CachedPiece {
    std::array<char, kPieceBytes> piece;
    uint8_t bytes = 0;  // 0: the entry is unused
    uint8_t count = 0;
    std::array<uint32_t, 8> ids;
  };

  std::vector<CachedPiece> entries_;
};

}  // namespace fsdp::data
