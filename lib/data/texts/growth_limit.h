#pragma once

// The limit on the growth of compressed input: text that exceeds it was made to fill memory or disks.

#include <cstdint>
#include <optional>
#include <string>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::data {

/// Counts the text read from compressed input. Prose is compressed to a fifth to a tenth of its size.
class GrowthLimit {
 public:
  static constexpr int64_t kMostExpansion = 500;
  /// Number of bytes of text that any input may decompress to.
  static constexpr int64_t kFreeBytes = int64_t{64} << 20;

  void add(int64_t text_bytes) { text_bytes_ += text_bytes; }

  /// Describes the excess if there is more text than `read_bytes` of compressed input may yield.
  std::optional<std::string> excess(int64_t read_bytes) const {
    if (text_bytes_ <= kFreeBytes || text_bytes_ / kMostExpansion <= read_bytes) return std::nullopt;
    return concat("becomes more than ", kMostExpansion, " times as large when decompressed, ",
                  util::human_bytes(text_bytes_), " from the first ", util::human_bytes(read_bytes),
                  ", which no text does; leave it out");
  }

 private:
  int64_t text_bytes_ = 0;
};

}  // namespace fsdp::data
