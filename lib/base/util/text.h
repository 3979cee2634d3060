#pragma once

// Text for messages and reports, and lists of names.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::util {

/// Formats as printf() does.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

/// Formats with separators of thousands: 1234567 -> "1,234,567".
std::string with_commas(int64_t value);

/// Formats as 16 lower-case hexadecimal digits.
std::string hex_digits(uint64_t value);

/// Formats bytes with a binary unit: 1536 -> "1.5 KiB".
std::string human_bytes(int64_t bytes);

/// Formats seconds as "59s", "2m05s", "3h07m".
std::string human_duration(double seconds);

/// Formats like printf's %.*f, or like %.*g if the value is very large or very small.
std::string fixed(double value, int digits);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// Lists at most `most` of the names: "a, b, c and 5 more".
std::string name_list(const std::vector<std::string>& names, const char* separator = ", ", size_t most = 10);

/// Whether one of the patterns matches the whole name. In a pattern * stands for any number of characters
/// (dots too), ? for exactly one, and every other character for itself: "*norm*", "*.bias".
bool matches_any(std::string_view name, const std::vector<std::string>& patterns);

/// Quotes the word for a shell, in single quotes if it needs any.
std::string shell_word(const std::string& word);

/// Replaces everything in `text` that could confuse a terminal by \xNN: bytes that are not UTF-8, and control
/// characters except line ends and tabs.
std::string printable(std::string_view text);

/// Returns the candidate with the smallest edit distance to `word`; "" if none is a likely typo.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The same, ignoring case, for words of 3 to 80 bytes. "" for other words.
std::string nearest_choice(std::string_view word, const std::vector<std::string>& choices);

}  // namespace fsdp::util
