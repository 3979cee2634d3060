#include "base/util/text.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <numeric>

namespace fsdp::util {
namespace {

/// Length of the first character of `text` in bytes; 0 if it must not be printed.
size_t printable_character(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char first = byte(0);
  if (first < 0x80) return (first >= 0x20 && first != 0x7f) || first == '\n' || first == '\t' ? 1 : 0;
  size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  uint32_t code = first & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0xa0, 0x800, 0x10000};  // from 0x80 to 0x9f: control characters
  bool surrogate = code >= 0xd800 && code <= 0xdfff;
  // Characters that turn the direction of text, or end a line: U+2028 to U+202E, U+2066 to U+2069.
  if ((code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) return 0;
  return code < kSmallest[length] || code > 0x10ffff || surrogate ? 0 : length;
}

/// Levenshtein distance in which swapping two neighbouring letters is one edit.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

/// Backtracks to the last star only: an earlier star cannot gain by taking more than it had to. So the time
/// is at most the product of the lengths.
bool matches(std::string_view name, std::string_view pattern) {
  size_t n = 0, p = 0;
  size_t star = std::string_view::npos, star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

std::string printed(const char* format, ...) {
  std::va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, values)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(values);
  return text;
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string hex_digits(uint64_t value) { return printed("%016llx", static_cast<unsigned long long>(value)); }

std::string human_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  return printed("%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
}

std::string human_duration(double seconds) {
  const long total = std::lround(std::max(0.0, seconds));
  if (total < 60) return printed("%lds", total);
  if (total < 3600) return printed("%ldm%02lds", total / 60, total % 60);
  return printed("%ldh%02ldm", total / 3600, total % 3600 / 60);
}

std::string fixed(double value, int digits) {
  double magnitude = std::abs(value);
  bool awkward = magnitude >= 1e9 || (magnitude > 0 && magnitude < std::pow(10.0, -digits));
  return awkward ? printed("%.*g", digits, value) : printed("%.*f", digits, value);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += parts[i];
  }
  return joined;
}

std::string name_list(const std::vector<std::string>& names, const char* separator, size_t most) {
  const size_t shown = std::min(names.size(), most);
  std::string text = join({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown)}, separator);
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

bool matches_any(std::string_view name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [name](const std::string& pattern) { return matches(name, pattern); });
}

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string printable(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    size_t length = printable_character(text.substr(i));
    if (length > 0) {
      result += text.substr(i, length);
      i += length;
    } else {
      result += printed("\\x%02x", static_cast<unsigned char>(text[i++]));
    }
  }
  return result;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string nearest_choice(std::string_view word, const std::vector<std::string>& choices) {
  if (word.size() < 3 || word.size() > 80) return "";  // a shorter word is similar to too many others
  const auto lowered = [](std::string_view text) {
    std::string result(text);
    for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return result;
  };
  std::vector<std::string> low;
  for (const std::string& choice : choices) low.push_back(lowered(choice));
  const std::string best = nearest(lowered(word), low);
  const auto found = std::find(low.begin(), low.end(), best);
  return found == low.end() ? "" : choices[static_cast<size_t>(found - low.begin())];
}

}  // namespace fsdp::util
