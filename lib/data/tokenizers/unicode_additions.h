#pragma once

// Characters of Unicode 16.0 that Unicode 14.0 lacks, for libraries with older tables: PCRE2 of Debian 12 has those of
// 14.0, Hugging Face's tokenizers and tiktoken those of 16.0. Written by scripts/unicode_additions.

#include <array>
#include <cstddef>
#include <cstdint>

namespace fsdp::data {

/// Characters that follow each other and have the same general category ("Lu") and script ("Han").
struct UnicodeAddition {
  uint32_t first, last;
  const char *category, *script;
};

struct UnicodeRange {
  uint32_t first, last;
};

/// Characters that have a combining class or a decomposition, which tokenizers does not know: it normalizes by
/// Unicode 9.0. Sorted.
inline constexpr size_t kUnformedRanges = 61;
extern const std::array<UnicodeRange, kUnformedRanges> kUnformedTable;

inline constexpr size_t kUnicodeAdditions = 126;
extern const std::array<UnicodeAddition, kUnicodeAdditions> kUnicodeAdditionTable;

}  // namespace fsdp::data
