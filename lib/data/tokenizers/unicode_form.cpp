#include "data/tokenizers/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/util/error.h"
#include "data/tokenizers/unicode_additions.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

const utf8proc_property_t& property_of(uint32_t value) {
  return *utf8proc_get_property(static_cast<utf8proc_int32_t>(value));
}

/// Whether the form leaves the character and its neighbours alone, because tokenizers does not know it.
bool is_unformed(uint32_t value) {
  if (value < kUnformedTable.front().first) return false;
  const auto* const range =
      std::lower_bound(kUnformedTable.begin(), kUnformedTable.end(), value,
                       [](const UnicodeRange& each, uint32_t code) { return each.last < code; });
  return range != kUnformedTable.end() && value >= range->first;
}

/// Whether the text before the character has the same form without it. Marks combine with the character
/// before them, and so do the parts of Korean syllables, including those that the compatibility forms make of
/// other characters. (Only some of these do; a boundary that is missed costs nothing.)
bool starts_segment(uint32_t value) {
  if (value < 0x300 || is_unformed(value)) return true;
  const utf8proc_propval_t category = property_of(value).category;
  if (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
      category == UTF8PROC_CATEGORY_ME) {
    return false;
  }
  const bool korean_part = (value >= 0x1100 && value <= 0x11ff) || (value >= 0x3131 && value <= 0x318e) ||
                           (value >= 0xff9e && value <= 0xffdc);
  return !korean_part;
}

/// Whether the form leaves the character unchanged, unless a following character combines with it.
bool stays(uint32_t value, UnicodeForm form) {
  if (value < 0x80) return true;
  if (form == UnicodeForm::kNfc && value < 0x300) return true;
  const bool syllable = value >= 0xac00 && value <= 0xd7a3;  // not in utf8proc's table
  if (syllable) return form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  return is_unformed(value) || (starts_segment(value) && property_of(value).decomp_seqindex == UINT16_MAX);
}

std::string formed(std::string_view text, UnicodeForm form) {
  const bool composed = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                     (compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(out, &std::free);
  FSDP_CHECK(bytes >= 0, utf8proc_errmsg(bytes));
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(bytes)};
}

}  // namespace

size_t last_form_boundary(std::string_view text) {
  for (size_t i = text.size(); i > 0;) {
    do {
      --i;
    } while (i > 0 && is_continuation(text[i]));
    if (starts_segment(first_code_point(text.substr(i)).value)) return i;
  }
  return 0;
}

FormedText::FormedText(std::string_view text, UnicodeForm form) : raw_(text) {
  size_t copied = 0;  // bytes of the raw text
  size_t part = 0;    // beginning of the current part between two boundaries
  bool may_change = false, ends_after = false;
  auto end_part = [&](size_t end) {
    if (may_change) {
      std::string_view before = text.substr(part, end - part);
      if (std::string now = formed(before, form); now != before) {
        formed_ += text.substr(copied, part - copied);
        changes_.push_back({part, end, formed_.size(), formed_.size() + now.size()});
        formed_ += now;
        copied = end;
      }
    }
    part = end;
    may_change = false;
  };
  for (size_t i = 0; i < text.size();) {
    // Skips eight characters of ASCII at once.
    uint64_t word = ~uint64_t{0};
    if (i + sizeof(word) <= text.size()) std::memcpy(&word, text.data() + i, sizeof(word));
    if ((word & 0x8080808080808080ULL) == 0) {
      end_part(i);
      ends_after = false;
      i += sizeof(word);
      part = i - 1;
      continue;
    }
    CodePoint character = first_code_point(text.substr(i));
    if (ends_after || starts_segment(character.value)) end_part(i);
    may_change = may_change || !stays(character.value, form);
    ends_after = is_unformed(character.value);
    i += character.bytes;
  }
  end_part(text.size());
  if (!changes_.empty()) formed_ += text.substr(copied);
}

std::optional<size_t> FormedText::raw_place(size_t place) const {
  auto after = std::upper_bound(changes_.begin(), changes_.end(), place,
                                [](size_t at, const Change& change) { return at < change.begin; });
  if (after == changes_.begin()) return place;
  const Change& before = *std::prev(after);
  if (place == before.begin) return before.raw_begin;
  if (place < before.end) return std::nullopt;
  return before.raw_end + (place - before.end);
}

size_t FormedText::place_of(size_t raw) const {
  auto after = std::upper_bound(changes_.begin(), changes_.end(), raw,
                                [](size_t at, const Change& change) { return at < change.raw_begin; });
  if (after == changes_.begin()) return raw;
  const Change& before = *std::prev(after);
  if (raw == before.raw_begin) return before.begin;
  if (raw < before.raw_end) return before.end;
  return before.end + (raw - before.raw_end);
}

}  // namespace fsdp::data
