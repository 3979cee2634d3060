#pragma once

// Byte pair encoding of one piece of text over bytes, as in GPT-2: it begins with one token a byte.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/merge_table.h"
#include "data/vocabulary.h"

namespace fsdp::data {

/// Thread-safe; what a thread needs to itself is a PieceCache.
class BytePairMerger {
 public:
  /// Throws Error(kData) when a byte has no token, or a merge names or makes what is no token.
  explicit BytePairMerger(const Vocabulary& vocabulary);

  /// Appends the ids of a piece.
  void encode(std::string_view piece, PieceCache& cache, std::vector<int64_t>& ids) const;

 private:
  void merge_piece(std::string_view piece, std::vector<int64_t>& ids) const;

  std::array<uint32_t, 256> byte_ids_{};
  MergeTable merges_;
  bool ignore_merges_;
  std::unordered_map<std::string, uint32_t> whole_pieces_;  ///< with ignore_merges only: bytes to id
};

}  // namespace fsdp::data
