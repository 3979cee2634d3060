#include "data/tokenizers/character_map.h"

#include <cstring>

#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

// A unit of Darts: bits 0-7 and 31 are the label, bit 8 is whether a key ends there, bits 9 and 10-30 are the
// offset of its children. The unit of a key's end is a value, without bit 31.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000ffu; }
size_t offset_of(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6); }

constexpr size_t kLabels = 256;  ///< number of possible children of a unit

}  // namespace

std::optional<CharacterMap> CharacterMap::of(std::string_view map) {
  CharacterMap made;
  uint32_t bytes = 0;
  if (map.size() < sizeof(bytes)) return std::nullopt;
  std::memcpy(&bytes, map.data(), sizeof(bytes));
  map.remove_prefix(sizeof(bytes));
  if (bytes == 0 || bytes % sizeof(uint32_t) != 0 || bytes >= map.size()) return std::nullopt;
  made.units_.resize(bytes / sizeof(uint32_t));
  std::memcpy(made.units_.data(), map.data(), bytes);
  made.texts_ = map.substr(bytes);
  const bool valid = valid_utf8_prefix(made.texts_) == made.texts_.size() && made.texts_.ends_with('\0');
  if (!valid || !made.stays_inside()) return std::nullopt;
  return made;
}

/// Visits every unit that a search can reach, each once. A search reads the children for all labels.
bool CharacterMap::stays_inside() const {
  std::vector<bool> visited(units_.size());
  std::vector<size_t> waiting = {0};
  visited[0] = true;
  while (!waiting.empty()) {
    const size_t node = waiting.back();
    waiting.pop_back();
    const size_t children = node ^ offset_of(units_[node]);
    if ((children | (kLabels - 1)) >= units_.size()) return false;
    if (has_leaf(units_[node])) {
      const size_t begin = value_of(units_[children]);
      if (begin >= texts_.size() || is_continuation(texts_[begin])) return false;
    }
    for (size_t label = 1; label < kLabels; ++label) {
      const size_t child = children ^ label;
      if (label_of(units_[child]) != label || visited[child]) continue;
      visited[child] = true;
      waiting.push_back(child);
    }
  }
  return true;
}

std::optional<std::string_view> CharacterMap::find(std::string_view key) const {
  size_t node = offset_of(units_[0]);
  for (char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || label_of(units_[node]) != byte) return std::nullopt;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    const size_t begin = value_of(units_[node]);
    return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

}  // namespace fsdp::data
