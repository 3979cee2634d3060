#pragma once

// Statistics of the lengths of documents, from which a row length can be chosen.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/texts/rows.h"

namespace fsdp::data {

/// Collects lengths of documents or conversations in a histogram of bounded size. Not thread-safe.
class DocumentLengths {
 public:
  void add(int64_t tokens, const RowPlace& place);

  int64_t documents() const { return documents_; }
  int64_t longest() const { return longest_.front().tokens; }

  /// Returns a length that this share of the documents does not exceed: the shortest, exact up to
  /// kExactTokens, above it at most 1/8192 larger. Requires: documents() > 0.
  int64_t at_most(double share) const;
  static constexpr int64_t kExactTokens = 1 << 14;

  /// Returns "half of the conversations have at most 34 tokens, 99 % at most 80; the longest have 812 (line
  /// 17 of chats.jsonl), 700 (line 3 of chats.jsonl) and 650 (line 9 of chats.jsonl)" and, for each usual
  /// data.sequence_length that would cut some of them, a line with the number of documents and of tokens
  /// behind the cut. `noun` is the plural of what was counted. Requires: documents() > 0.
  std::string text(const std::string& noun) const;

 private:
  struct Long {
    int64_t tokens;
    std::string place;
  };
  /// Documents longer than a row, and the number of their tokens behind it.
  struct Cut {
    int64_t documents = 0, tokens = 0;
  };
  static constexpr size_t kNamed = 3;
  static constexpr int64_t kShortestRow = 512;
  static constexpr size_t kRows = 12;  ///< number of row lengths, each twice the one before

  std::string cuts(const std::string& noun) const;

  int64_t documents_ = 0, tokens_ = 0;
  std::vector<int64_t> counts_;  ///< number of documents in each bucket of lengths
  std::array<Cut, kRows> cuts_{};
  std::vector<Long> longest_;  ///< the kNamed longest documents, longest first
};

}  // namespace fsdp::data
