#pragma once

// Byte pair encoding of one piece of text (Sennrich, Haddow, Birch: Neural machine translation of rare words
// with subword units, ACL 2016; over bytes as in GPT-2): begin with one token a byte and merge the pair that
// comes first in the list of merges, the leftmost of several, until no pair is in it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe_vocabulary.h"

namespace fsdp::data {

/// Thread-safe; what a thread needs to itself is a Scratch.
class BytePairMerger {
 public:
  /// Remembers the ids of short pieces; words come again and again. A place for each value of the hash, so a
  /// new piece replaces an old one.
  class Cache {
   public:
    Cache() : entries_(kEntries) {}

   private:
    friend class BytePairMerger;
    static constexpr size_t kEntries = 1 << 16;  // 4 MiB
    struct alignas(64) Entry {
      std::array<char, 30> piece;
      uint8_t bytes = 0;  // 0: not used
      uint8_t count = 0;
      std::array<uint32_t, 8> ids;
    };
    std::vector<Entry> entries_;
  };

  /// Throws Error(kData) when a byte has no token, or a merge names or makes what is no token.
  explicit BytePairMerger(const BpeVocabulary& vocabulary);

  /// Appends the ids of a piece.
  void encode(std::string_view piece, Cache& cache, std::vector<int64_t>& ids) const;

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
  void merge_piece(std::string_view piece, std::vector<int64_t>& ids) const;
  /// By looking at all pairs each time: fastest for words.
  void merge_short(std::string_view piece, std::vector<int64_t>& ids) const;
  /// With a queue of pairs: n log n.
  void merge_long(std::string_view piece, std::vector<int64_t>& ids) const;

  std::array<uint32_t, 256> byte_ids_{};
  std::vector<Merge> merges_;  ///< a hash table with open addressing, half empty at least
  size_t mask_ = 0;
  bool ignore_merges_;
  std::unordered_map<std::string, uint32_t> whole_pieces_;  ///< with ignore_merges only: bytes to id
};

}  // namespace fsdp::data
