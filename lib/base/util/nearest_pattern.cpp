#include "base/util/nearest_pattern.h"

#include <algorithm>
#include <cstddef>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::util {

std::string nearest_pattern(const std::string& pattern, const std::vector<std::string>& names) {
  constexpr const char* kBetweenWords = ".*?";
  constexpr size_t kShortestWord = 3;  // a shorter word is similar to too many others
  if (pattern.find_first_of("*?") == std::string::npos) return nearest(pattern, names);
  std::vector<std::string> words;
  const auto add_words = [&](const std::string& text, const char* separators) {
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = std::min(text.find_first_of(separators, begin), text.size());
      if (end - begin >= kShortestWord) words.push_back(text.substr(begin, end - begin));
    }
  };
  for (const std::string& name : names) {
    add_words(name, ".");
    add_words(name, "._");
  }
  for (size_t begin = 0, end; begin < pattern.size(); begin = end + 1) {
    end = std::min(pattern.find_first_of(kBetweenWords, begin), pattern.size());
    if (end - begin < kShortestWord) continue;
    const std::string near = nearest(pattern.substr(begin, end - begin), words);
    const std::string corrected = pattern.substr(0, begin) + near + pattern.substr(end);
    const auto fits = [&](const std::string& name) { return matches_any(name, {corrected}); };
    if (!near.empty() && std::any_of(names.begin(), names.end(), fits)) return corrected;
  }
  return "";
}

std::string pattern_remedy(const std::string& pattern, const std::vector<std::string>& names) {
  const std::string near = nearest_pattern(pattern, names);
  return near.empty() ? "correct it or take it out" : "did you mean \"" + near + "\"?";
}

void require_matches(const char* option, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names, const std::string& expected) {
  for (const std::string& pattern : patterns) {
    const auto fits = [&](const std::string& name) { return matches_any(name, {pattern}); };
    if (std::any_of(names.begin(), names.end(), fits)) continue;
    fail(ErrorKind::kUsage, option, ": the pattern \"", pattern, "\" must match ", expected,
         ", but matches none; ", pattern_remedy(pattern, names));
  }
}

}  // namespace fsdp::util
