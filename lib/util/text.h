#pragma once

// Small text helpers for messages and reports.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::util {

/// 1234567 -> "1,234,567".
std::string with_commas(int64_t value);

/// Bytes with a binary unit: 1536 -> "1.5 KiB".
std::string human_bytes(int64_t bytes);

/// Seconds as "59s", "2m05s", "3h07m".
std::string human_duration(double seconds);

/// The value as printf's %.*f or, for very large and very small ones, %.*g would show it.
std::string fixed(double value, int digits);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// The word as a shell takes it: in single quotes where it needs them.
std::string shell_word(const std::string& word);

/// `text` with all that could confuse a terminal as \xNN: control characters but line ends and tabs, and
/// bytes that are not UTF-8.
std::string printable(std::string_view text);

/// The entry of `candidates` that is nearest to `word` by edit distance, or "" when none is near enough to be
/// a likely slip of the keyboard.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The same for words that may differ in upper and lower case, of lengths that can be slips: from 3 bytes to
/// 80. "adamW" is nearest to "adamw".
std::string nearest_choice(std::string_view word, const std::vector<std::string>& choices);

}  // namespace fsdp::util
