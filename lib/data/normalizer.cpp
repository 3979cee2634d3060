#include "data/normalizer.h"

#include <optional>

#include "data/character_map.h"
#include "data/split_pattern.h"
#include "data/utf8.h"
#include "util/error.h"

namespace fsdp::data {

struct Normalizer::Step {
  NormalizerStep what;
  std::optional<SplitPattern> pattern;
  std::optional<CharacterMap> map;

  explicit Step(const NormalizerStep& step) : what(step) {
    if (what.kind == NormalizerStep::Kind::kReplace && !what.literal) pattern.emplace(what.pattern, false);
    if (what.kind == NormalizerStep::Kind::kPrecompiled) map.emplace(what.content);
  }

  std::string replaced(std::string_view text) const {
    std::string out;
    SplitPattern::Scratch scratch;
    SplitPattern::Match match;
    while (!text.empty()) {
      if (pattern) {
        if (pattern->find(text, false, scratch, match) != SplitPattern::Found::kMatch) break;
      } else {
        match.begin = text.find(what.pattern);
        if (match.begin == std::string_view::npos) break;
        match.end = match.begin + what.pattern.size();
      }
      out += text.substr(0, match.begin);
      out += what.content;
      text.remove_prefix(match.end);
    }
    out += text;
    return out;
  }

  std::string stripped(std::string_view text) const {
    while (what.left && !text.empty()) {
      const CodePoint first = first_code_point(text);
      if (!is_white_space(first.value)) break;
      text.remove_prefix(first.bytes);
    }
    while (what.right && !text.empty()) {
      size_t last = text.size() - 1;
      while (last > 0 && (text[last] & 0xc0) == 0x80) --last;
      if (!is_white_space(first_code_point(text.substr(last)).value)) break;
      text = text.substr(0, last);
    }
    return std::string(text);
  }

  std::string apply(std::string_view text, bool begins) const {
    switch (what.kind) {
      case NormalizerStep::Kind::kForm:
        return std::string(FormedText(text, what.form).text());
      case NormalizerStep::Kind::kPrepend:
        return util::concat(begins && !text.empty() ? what.content : "", text);
      case NormalizerStep::Kind::kReplace:
        return replaced(text);
      case NormalizerStep::Kind::kStrip:
        return stripped(text);
      case NormalizerStep::Kind::kPrecompiled:
        return map->map(text);
    }
    return std::string(text);
  }
};

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  for (const NormalizerStep& step : steps) steps_.push_back(std::make_unique<Step>(step));
}

Normalizer::~Normalizer() = default;

std::string Normalizer::operator()(std::string_view text, bool begins) const {
  std::string normalized(text);
  for (const auto& step : steps_) normalized = step->apply(normalized, begins);
  return normalized;
}

}  // namespace fsdp::data
