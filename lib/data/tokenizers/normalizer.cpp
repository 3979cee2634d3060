#include "data/tokenizers/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/util/error.h"
#include "data/tokenizers/character_map.h"
#include "data/tokenizers/split_pattern.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

/// Appends to a text that is being normalized.
class BoundedText {
 public:
  explicit BoundedText(const Normalizer::Text& text) : limits_(text) {}
  BoundedText& operator+=(std::string_view part) {
    limits_.check(out_.size() + part.size());
    out_ += part;
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  const Normalizer::Text& limits_;
  std::string out_;
};

std::string mapped(const Normalizer::Text& whole, const CharacterMap& map) {
  const std::string_view text = whole.text;
  BoundedText out(whole);
  auto characters = [&](std::string_view grapheme) {
    while (!grapheme.empty()) {
      const std::string_view one = grapheme.substr(0, first_code_point(grapheme).bytes);
      out += map.find(one).value_or(one);
      grapheme.remove_prefix(one.size());
    }
  };
  // As in Hugging Face's tokenizers, a grapheme of up to five bytes is mapped as a whole if the map has a key
  // that begins it, otherwise character by character.
  auto grapheme = [&](std::string_view one) {
    constexpr size_t kMostGraphemeBytes = 5;
    const auto found = one.size() <= kMostGraphemeBytes ? map.find(one) : std::nullopt;
    found ? void(out += *found) : characters(one);
  };
  size_t begin = 0;
  utf8proc_int32_t state = 0, before = -1;
  for (size_t i = 0; i < text.size();) {
    const CodePoint next = first_code_point(text.substr(i));
    const auto value = static_cast<utf8proc_int32_t>(next.value);
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, value, &state)) {
      grapheme(text.substr(begin, i - begin));
      begin = i;
    }
    before = value;
    i += next.bytes;
  }
  if (begin < text.size()) grapheme(text.substr(begin));
  return out.take();
}

void replace(Normalizer::Text& text, const std::string& pattern, const std::string& content) {
  BoundedText out(text);
  std::string_view rest = text.text;
  for (size_t at = rest.find(pattern); at != std::string_view::npos; at = rest.find(pattern)) {
    (out += rest.substr(0, at)) += content;
    rest.remove_prefix(at + pattern.size());
  }
  out += rest;
  text.text = out.take();
}

void replace(Normalizer::Text& text, const SplitPattern& pattern, const std::string& content) {
  BoundedText out(text);
  std::string_view rest = text.text;
  SplitPattern::SplitScratch scratch;
  scratch.begin_text(rest);
  SplitPattern::Match match;
  while (!rest.empty() && pattern.find(rest, false, scratch, match) == SplitPattern::MatchOutcome::kMatch) {
    (out += rest.substr(0, match.begin)) += content;
    rest.remove_prefix(match.end);
  }
  out += rest;
  text.text = out.take();
}

std::string stripped(std::string_view text, bool left, bool right) {
  if (left) text = trimmed_left(text);
  if (right) text = trimmed_right(text);
  return std::string(text);
}

CharacterMap character_map_of(const std::string& content) {
  std::optional<CharacterMap> map = CharacterMap::of(content);
  if (!map) {
    fail(ErrorKind::kData,
         "the normalizer Precompiled has a map of characters (precompiled_charsmap) that is not a "
         "SentencePiece map; copy the tokenizer's file again");
  }
  return *std::move(map);
}

Normalizer::Step step_of(const NormalizerStep& step) {
  using Text = Normalizer::Text;
  switch (step.kind) {
    case NormalizerStep::StepKind::kForm:
      return [form = step.form](Text& text) { text.text = std::string(FormedText(text.text, form).text()); };
    case NormalizerStep::StepKind::kPrepend:
      return [content = step.content](Text& text) {
        if (!text.begins || text.text.empty()) return;
        text.check(text.text.size() + content.size());
        text.text.insert(0, content);
      };
    case NormalizerStep::StepKind::kReplace:
      if (step.literal) {
        return
            [pattern = step.pattern, content = step.content](Text& text) { replace(text, pattern, content); };
      }
      return [pattern = SplitPattern(step.pattern, false), content = step.content](Text& text) {
        replace(text, pattern, content);
      };
    case NormalizerStep::StepKind::kStrip:
      return [left = step.left, right = step.right](Text& text) {
        text.text = stripped(text.text, left, right);
      };
    case NormalizerStep::StepKind::kPrecompiled:
      return [map = character_map_of(step.content)](Text& text) { text.text = mapped(text, map); };
  }
  return nullptr;
}

}  // namespace

void Normalizer::Text::check(size_t bytes) const {
  if (bytes <= most_bytes) return;
  fail(ErrorKind::kData, "the normalizer of the tokenizer makes more than ", most_bytes,
       " bytes of a text, more than 64 times as many as it has; use another tokenizer");
}

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  std::transform(steps.begin(), steps.end(), std::back_inserter(steps_), step_of);
}

std::string Normalizer::operator()(std::string_view text, bool begins) const {
  constexpr size_t kMostGrowth = 64, kFreeBytes = 1024;
  Text normalized{
      .text = std::string(text), .begins = begins, .most_bytes = kMostGrowth * text.size() + kFreeBytes};
  for (const auto& step : steps_) {
    step(normalized);
    normalized.check(normalized.text.size());
  }
  return std::move(normalized.text);
}

}  // namespace fsdp::data
