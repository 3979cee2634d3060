#pragma once

// Characters that Unicode 16.0 has and Unicode 14.0 lacks, for libraries with older tables: PCRE2 of Debian
// 12 has the tables of 14.0, Hugging Face's tokenizers and tiktoken have those of 16.0. Written by
// scripts/unicode_additions.

#include <array>
#include <cstddef>
#include <cstdint>

namespace fsdp::data {

/// Consecutive characters of the same general category ("Lu") and script ("Han").
struct UnicodeAddition {
  uint32_t first, last;
  const char *category, *script;
};

struct UnicodeRange {
  uint32_t first, last;
};

/// Characters with a combining class or decomposition that Unicode 9.0, which tokenizers uses, lacks. Sorted.
inline constexpr size_t kUnformedRanges = 61;
extern const std::array<UnicodeRange, kUnformedRanges> kUnformedTable;

inline constexpr size_t kUnicodeAdditions = 126;
extern const std::array<UnicodeAddition, kUnicodeAdditions> kUnicodeAdditionTable;

}  // namespace fsdp::data
