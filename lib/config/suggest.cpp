#include "config/suggest.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "config/keys.h"
#include "config/value.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::config {
namespace {

using util::concat;

/// A name in quotes only where TOML needs them.
std::string shown(const std::string& name) {
  static constexpr std::string_view kBare =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
  bool bare = !name.empty() && name.find_first_not_of(kBare) == std::string::npos;
  return bare ? clipped(name) : quoted_text(clipped(name));
}

/// Full names of the keys called `name` in any section.
std::vector<std::string> homonyms(const std::string& name) {
  std::vector<std::string> found;
  for (const Key& key : all_keys()) {
    if (key.name == name) found.push_back(key.full_name());
  }
  return found;
}

std::string known_sections() { return "one of the sections " + util::join(section_names(), ", "); }

}  // namespace

std::string unknown_section_text(const std::string& section) {
  std::string nearest = util::nearest_choice(section, section_names());
  if (nearest.empty()) return concat("expected ", known_sections(), "; found [", shown(section), "]");
  return concat("expected a section that exists; found [", shown(section), "]; did you mean [", nearest,
                "]?");
}

std::string unknown_key_text(const std::string& section, const std::string& name) {
  std::vector<std::string> own, full;
  for (const Key& key : all_keys()) {
    if (key.section == section) own.push_back(key.name);
    full.push_back(key.full_name());
  }
  std::string what =
      concat("expected a key that exists; found ", shown(section), ".", name.empty() ? "" : shown(name));
  std::string near_own = util::nearest_choice(name, own);
  if (!near_own.empty()) return concat(what, "; did you mean ", section, ".", near_own, "?");
  std::vector<std::string> elsewhere = homonyms(name);
  if (!elsewhere.empty()) return concat(what, "; did you mean ", util::join(elsewhere, " or "), "?");
  std::string near_full = util::nearest_choice(section + "." + name, full);
  if (!near_full.empty()) return concat(what, "; did you mean ", near_full, "?");
  if (own.empty()) return concat(what, "; there are the sections ", util::join(section_names(), ", "));
  return concat(what, "; [", section, "] has ", util::join(own, ", "));
}

std::string top_level_text(const std::string& name) {
  const std::vector<std::string> sections = section_names();
  if (std::find(sections.begin(), sections.end(), name) != sections.end()) {
    return concat("expected the section [", name, "], a table; found another kind of value; write [", name,
                  "] on a line of its own and its keys below");
  }
  std::vector<std::string> meant = homonyms(name);
  std::string what =
      concat("expected every key in a section; found ", shown(name), " outside of all sections");
  if (meant.empty()) {
    std::vector<std::string> names;
    for (const Key& key : all_keys()) names.push_back(key.name);
    meant = homonyms(util::nearest_choice(name, names));
  }
  if (!meant.empty()) return concat(what, "; did you mean ", util::join(meant, " or "), "?");
  return concat(what, "; there are the sections ", util::join(sections, ", "));
}

std::string nearest_value_text(const Key& key, const std::string& found) {
  Config defaults;
  const Value example = value_of(key, defaults);
  const bool is_text = std::holds_alternative<std::string>(example);
  std::vector<std::string> choices = key.constraint.choices;
  if (std::holds_alternative<bool>(example) && choices.empty()) choices = {"true", "false"};
  const std::string near = util::nearest_choice(found, choices);
  return near.empty() ? "" : concat("; did you mean ", is_text ? quoted_text(near) : near, "?");
}

std::string override_form_text(const std::string& name, bool has_value) {
  std::string text = concat("expected section.key=value, such as training.steps=100; found ",
                            name.empty() ? "no key" : shown(name), has_value ? " without a section" : "",
                            !has_value && !name.empty() ? " without a value" : "");
  std::vector<std::string> meant = homonyms(name);
  if (!meant.empty()) text += concat("; did you mean ", util::join(meant, "= or "), "=?");
  return text;
}

}  // namespace fsdp::config
