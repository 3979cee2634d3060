#pragma once

// The merges of byte pair encoding (Sennrich, Haddow, Birch: Neural machine translation of rare words with
// subword units, ACL 2016): of the pairs of neighbours the one that comes first in the list of merges becomes
// one token, the leftmost of several, until no pair is in the list.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/vocabulary.h"

namespace fsdp::data {

/// Remembers the ids of short pieces of text; words come again and again. A place for each value of the hash,
/// so a new piece replaces an old one. Not thread-safe.
class PieceCache {
 public:
  PieceCache() : entries_(kEntries) {}

  /// Appends the ids of a piece, which `encode` appends when they are not known.
  template <typename Encode>
  void encode(std::string_view piece, std::vector<int64_t>& ids, const Encode& encode) {
    if (piece.size() > kPieceBytes) return encode(piece, ids);
    Entry& entry = entry_of(piece);
    if (holds(entry, piece)) {
      for (uint8_t i = 0; i < entry.count; ++i) ids.push_back(entry.ids[i]);
      return;
    }
    const size_t before = ids.size();
    encode(piece, ids);
    keep(entry, piece, ids, before);
  }

 private:
  static constexpr size_t kEntries = 1 << 16;  // 4 MiB
  static constexpr size_t kPieceBytes = 30;
  struct alignas(64) Entry {
    std::array<char, kPieceBytes> piece;
    uint8_t bytes = 0;  // 0: not used
    uint8_t count = 0;
    std::array<uint32_t, 8> ids;
  };

  Entry& entry_of(std::string_view piece);
  static bool holds(const Entry& entry, std::string_view piece);
  static void keep(Entry& entry, std::string_view piece, const std::vector<int64_t>& ids, size_t before);

  std::vector<Entry> entries_;
};

/// Thread-safe.
class MergeTable {
 public:
  /// Throws Error(kData) when a merge names or makes what is no token.
  explicit MergeTable(const Vocabulary& vocabulary);

  /// Appends what is left of `count` tokens.
  void merge(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const;

 private:
  /// A merge: the lower the rank the sooner.
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    uint32_t id = 0;
  };
  static constexpr uint64_t kNoPair = UINT64_MAX;

  static uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  const Merge* find(uint32_t left, uint32_t right) const;
  void insert(const Merge& merge);
  /// By looking at all pairs each time: fastest for words.
  void merge_short(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const;
  /// With a queue of pairs: n log n.
  void merge_long(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const;

  std::vector<Merge> merges_;  ///< a hash table with open addressing, half empty at least
  size_t mask_ = 0;
};

/// The id of a token that the vocabulary needs; throws Error(kData) when it is not there.
uint32_t needed_token(const Vocabulary& vocabulary, const std::string& token);

}  // namespace fsdp::data
