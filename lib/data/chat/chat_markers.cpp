#include "data/chat/chat_markers.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::data {
namespace {

constexpr size_t kLongestMarker = 64;
/// The bar in DeepSeek's markers, U+FF5C.
constexpr std::string_view kWideBar = "\xef\xbd\x9c";

bool is_upper_name(std::string_view name) {
  return name.size() >= 3 &&
         std::ranges::all_of(name, [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
}

/// Whether "<" + inside + ">" is a marker.
bool is_angle_marker(std::string_view inside) {
  constexpr std::array<std::string_view, 4> kNames = {"s", "/s", "bos", "eos"};
  if (std::ranges::find(kNames, inside) != kNames.end()) return true;
  if (inside.starts_with("start_of_") || inside.starts_with("end_of_")) return true;
  for (const std::string_view bar : {std::string_view("|"), kWideBar}) {
    if (inside.size() > 2 * bar.size() && inside.starts_with(bar) && inside.ends_with(bar)) return true;
  }
  return false;
}

/// Returns the marker at the beginning of `text`, which begins with a bracket.
std::optional<std::string_view> marker_at(std::string_view text) {
  const char close = text[0] == '<' ? '>' : ']';
  const size_t end = text.substr(0, kLongestMarker).find_first_of(close == '>' ? "<> \t\n" : "[] \t\n", 1);
  if (end == std::string_view::npos || text[end] != close) return std::nullopt;
  std::string_view inside = text.substr(1, end - 1);
  const std::string_view marker = text.substr(0, end + 1);
  if (close == '>') return is_angle_marker(inside) ? std::optional(marker) : std::nullopt;
  if (inside.starts_with('/')) inside.remove_prefix(1);
  return is_upper_name(inside) ? std::optional(marker) : std::nullopt;
}

/// Whether any text of the value contains the marker.
bool has_text(const OrderedJson& value, std::string_view marker) {
  if (value.is_string()) return value.get_ref<const std::string&>().find(marker) != std::string::npos;
  if (value.is_object()) {
    return std::ranges::any_of(value.items(), [&](const auto& member) {
      return member.key().find(marker) != std::string::npos || has_text(member.value(), marker);
    });
  }
  return value.is_array() &&
         std::ranges::any_of(value, [&](const OrderedJson& item) { return has_text(item, marker); });
}

}  // namespace

std::vector<std::string> markers_in(std::string_view text) {
  std::vector<std::string> markers;
  for (size_t at = text.find_first_of("<["); at != std::string_view::npos;
       at = text.find_first_of("<[", at)) {
    const std::optional<std::string_view> marker = marker_at(text.substr(at));
    at += marker ? marker->size() : 1;
    if (marker && std::ranges::find(markers, *marker) == markers.end()) markers.emplace_back(*marker);
  }
  return markers;
}

void MarkerCheck::check(std::string_view rendered, const OrderedJson& messages, const OrderedJson& tools) {
  std::vector<std::string> spelled;
  for (const std::string& marker : markers_in(rendered)) {
    {
      const std::lock_guard lock(mutex_);
      if (tokens_.contains(marker)) continue;
    }
    std::vector<int64_t> ids;
    tokenizer_.encode(marker, ids);
    if (ids.size() == 1) {
      const std::lock_guard lock(mutex_);
      tokens_.insert(marker);
    } else if (!has_text(messages, marker) && !has_text(tools, marker)) {
      spelled.push_back(marker);
    }
  }
  if (spelled.empty()) return;
  fail(
      ErrorKind::kData, "the chat template ", template_name_, " writes ", util::join(spelled, ", "),
      ", but the tokenizer ", tokenizer_.name(), " has no such token", spelled.size() > 1 ? "s" : "",
      " and would spell ", spelled.size() > 1 ? "them" : "it",
      " as text; choose the model's own chat template, a tokenizer with these tokens, "
      "`add_special_tokens` to add them to this one, or `spell_markers` if the model is to see them as text");
}

}  // namespace fsdp::data
