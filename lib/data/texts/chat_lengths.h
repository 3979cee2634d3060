#pragma once

// Statistics of the lengths of conversations, from which a row length can be chosen.

#include <cstdint>
#include <string>
#include <vector>

#include "data/texts/rows.h"

namespace fsdp::data {

/// Collects lengths of conversations. Not thread-safe.
class ChatLengths {
 public:
  void add(int64_t tokens, const RowPlace& place);

  bool empty() const { return lengths_.empty(); }
  /// Returns "half of the conversations have at most 34 tokens, 99 % at most 80; the longest have 812 (line
  /// 17 of chats.jsonl), 700 (line 3 of chats.jsonl) and 650 (line 9 of chats.jsonl)". Requires: not empty().
  std::string text() const;
  int64_t longest() const { return longest_.front().tokens; }

 private:
  struct Long {
    int64_t tokens;
    std::string place;
  };
  static constexpr size_t kNamed = 3;

  int64_t at_most(double share) const;

  std::vector<int32_t> lengths_;
  std::vector<Long> longest_;  ///< the kNamed longest conversations, longest first
};

}  // namespace fsdp::data
