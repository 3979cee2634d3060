#include "data/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "data/split_pattern.h"
#include "data/utf8.h"
#include "util/error.h"

namespace fsdp::data {
namespace {

/// Longer graphemes are mapped character by character.
constexpr size_t kMostGraphemeBytes = 5;

// A unit of Darts: bits 0-7 and 31 are the label, bit 8 whether a key ends there, bits 9 and 10-30 the offset
// of its children. The unit of an end is a value, without bit 31.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000ffu; }
size_t offset_of(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6); }

/// The map by which SentencePiece models normalize characters ("precompiled_charsmap"): a trie of sequences
/// of bytes, made by Darts (a double array: Aoe, An efficient digital search algorithm, 1989), and the texts
/// that replace them. Texts are mapped as in Hugging Face's tokenizers: a grapheme of up to five bytes as a
/// whole if the map has a beginning of it, and else character by character.
class CharacterMap {
 public:
  /// `map` is the number of bytes of the trie, the trie, and the texts, each ended by a zero.
  explicit CharacterMap(std::string_view map) {
    auto damaged = [] {
      util::fail(util::ErrorKind::kData,
                 "the normalizer Precompiled has a map of characters (precompiled_charsmap) that is not a "
                 "SentencePiece map; copy the tokenizer's file again");
    };
    uint32_t bytes = 0;
    if (map.size() < sizeof(bytes)) damaged();
    std::memcpy(&bytes, map.data(), sizeof(bytes));
    map.remove_prefix(sizeof(bytes));
    if (bytes == 0 || bytes % sizeof(uint32_t) != 0 || bytes > map.size()) damaged();
    units_.resize(bytes / sizeof(uint32_t));
    std::memcpy(units_.data(), map.data(), bytes);
    texts_ = map.substr(bytes);
    if (valid_utf8_prefix(texts_) != texts_.size()) damaged();
  }

  /// `text` must be valid UTF-8.
  std::string map(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    auto characters = [&](std::string_view grapheme) {
      while (!grapheme.empty()) {
        const std::string_view one = grapheme.substr(0, first_code_point(grapheme).bytes);
        out += find(one).value_or(one);
        grapheme.remove_prefix(one.size());
      }
    };
    auto grapheme = [&](std::string_view whole) {
      if (whole.size() <= kMostGraphemeBytes) {
        if (auto mapped = find(whole)) {
          out += *mapped;
          return;
        }
      }
      characters(whole);
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
    return out;
  }

 private:
  /// The text for the shortest key that `key` begins with.
  std::optional<std::string_view> find(std::string_view key) const {
    size_t node = offset_of(units_[0]);
    for (char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) return std::nullopt;
      const uint32_t unit = units_[node];
      node ^= offset_of(unit);
      if (!has_leaf(unit) || node >= units_.size()) continue;
      const size_t begin = value_of(units_[node]);
      if (begin > texts_.size()) return std::nullopt;
      const size_t end = std::min(texts_.find('\0', begin), texts_.size());
      return std::string_view(texts_).substr(begin, end - begin);
    }
    return std::nullopt;
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

std::string replaced(std::string_view text, const SplitPattern& pattern, const std::string& content) {
  std::string out;
  SplitPattern::Scratch scratch;
  SplitPattern::Match match;
  while (!text.empty() && pattern.find(text, false, scratch, match) == SplitPattern::Found::kMatch) {
    out += text.substr(0, match.begin);
    out += content;
    text.remove_prefix(match.end);
  }
  out += text;
  return out;
}

std::string stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint first = first_code_point(text);
    if (!is_white_space(first.value)) break;
    text.remove_prefix(first.bytes);
  }
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && is_continuation(text[last])) --last;
    if (!is_white_space(first_code_point(text.substr(last)).value)) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

Normalizer::Step step_of(const NormalizerStep& step) {
  switch (step.kind) {
    case NormalizerStep::Kind::kForm:
      return
          [form = step.form](std::string&& text, bool) { return std::string(FormedText(text, form).text()); };
    case NormalizerStep::Kind::kPrepend:
      return [content = step.content](std::string&& text, bool begins) {
        return begins && !text.empty() ? content + text : std::move(text);
      };
    case NormalizerStep::Kind::kReplace:
      if (step.literal) {
        return [pattern = step.pattern, content = step.content](std::string&& text, bool) {
          return replace_all(text, pattern, content);
        };
      }
      return [pattern = SplitPattern(step.pattern, false), content = step.content](std::string&& text, bool) {
        return replaced(text, pattern, content);
      };
    case NormalizerStep::Kind::kStrip:
      return [left = step.left, right = step.right](std::string&& text, bool) {
        return stripped(text, left, right);
      };
    case NormalizerStep::Kind::kPrecompiled:
      return [map = CharacterMap(step.content)](std::string&& text, bool) { return map.map(text); };
  }
  return nullptr;
}

}  // namespace

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  std::transform(steps.begin(), steps.end(), std::back_inserter(steps_), step_of);
}

std::string Normalizer::operator()(std::string_view text, bool begins) const {
  std::string normalized(text);
  for (const auto& step : steps_) normalized = step(std::move(normalized), begins);
  return normalized;
}

}  // namespace fsdp::data
