#include "util/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace fsdp::util {
namespace {

std::string printed(const char* format, double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, digits, value);
  return buffer;
}

/// Levenshtein distance with neighbouring letters swapped counted as one edit.
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

}  // namespace

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string human_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  return printed("%.*f", value, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}

std::string human_duration(double seconds) {
  auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  char buffer[64];
  if (total < 60) {
    std::snprintf(buffer, sizeof(buffer), "%lds", static_cast<long>(total));
  } else if (total < 3600) {
    std::snprintf(buffer, sizeof(buffer), "%ldm%02lds", static_cast<long>(total / 60),
                  static_cast<long>(total % 60));
  } else {
    std::snprintf(buffer, sizeof(buffer), "%ldh%02ldm", static_cast<long>(total / 3600),
                  static_cast<long>(total % 3600 / 60));
  }
  return buffer;
}

std::string fixed(double value, int digits) {
  double magnitude = std::abs(value);
  bool awkward = magnitude >= 1e9 || (magnitude > 0 && magnitude < std::pow(10.0, -digits));
  return printed(awkward ? "%.*g" : "%.*f", value, digits);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += parts[i];
  }
  return joined;
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

}  // namespace fsdp::util
