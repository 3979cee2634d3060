#include "data/character_map.h"

#include <utf8proc.h>

#include <cstring>

#include "data/utf8.h"
#include "util/error.h"

namespace fsdp::data {
namespace {

/// Longer graphemes are never mapped as a whole.
constexpr size_t kMostGraphemeBytes = 5;

// A unit of Darts: bits 0-7 and 31 the label, 8 whether a key ends behind it, 9 and 10-30 where its children
// are; that of an end, without bit 31, a value.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000ffu; }
size_t offset_of(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

CharacterMap::CharacterMap(std::string_view map) {
  auto damaged = [] {
    util::fail(util::ErrorKind::kData,
               "the normalizer Precompiled has a map of characters (precompiled_charsmap) that is no map of "
               "SentencePiece; copy the tokenizer's file anew");
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

/// What the first key becomes that `key` begins with.
std::optional<std::string_view> CharacterMap::find(std::string_view key) const {
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

std::string CharacterMap::map(std::string_view text) const {
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

std::optional<std::string> from_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = static_cast<uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      value = static_cast<uint32_t>(c - 'a') + 26;
    } else if (c >= '0' && c <= '9') {
      value = static_cast<uint32_t>(c - '0') + 52;
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      return std::nullopt;
    }
    bits = bits << 6 | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return bytes;
}

}  // namespace fsdp::data
