#include "setup/config/convert.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"
#include "setup/config/foreign_names.h"
#include "setup/config/include.h"
#include "setup/config/parameter_groups.h"
#include "setup/config/value.h"

namespace fsdp::config {

namespace {

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

}  // namespace

std::string unknown_section_text(const std::string& section) {
  const std::string answer = foreign_name_answer("", concat("[", section, "]"));
  if (!answer.empty()) return concat("unknown section [", shown(section), "]; ", answer);
  std::string nearest = util::nearest_choice(section, section_names());
  if (nearest.empty())
    return concat("unknown section [", shown(section), "]; the sections are ",
                  util::join(section_names(), ", "));
  return concat("unknown section [", shown(section), "]; did you mean [", nearest, "]?");
}

std::string unknown_key_text(const std::string& section, const std::string& name) {
  if (name == kIncludeKey) {
    return concat("include must be above all sections, but is in [", shown(section), "]; move it to the top");
  }
  std::string what = concat("unknown key ", shown(section), ".", name.empty() ? "" : shown(name));
  const std::string answer = foreign_name_answer(section, name);
  if (!answer.empty()) return concat(what, "; ", answer);
  std::vector<std::string> own, full;
  for (const Key& key : all_keys()) {
    if (key.section == section) own.push_back(key.name);
    full.push_back(key.full_name());
  }
  std::string near_own = util::nearest_choice(name, own);
  if (!near_own.empty()) return concat(what, "; did you mean ", section, ".", near_own, "?");
  std::vector<std::string> elsewhere = homonyms(name);
  if (!elsewhere.empty()) return concat(what, "; did you mean ", util::join(elsewhere, " or "), "?");
  std::string near_full = util::nearest_choice(section + "." + name, full);
  if (!near_full.empty()) return concat(what, "; did you mean ", near_full, "?");
  if (own.empty()) return concat(what, "; the sections are ", util::join(section_names(), ", "));
  return concat(what, "; the keys of [", section, "] are ", util::join(own, ", "));
}

std::string top_level_text(const std::string& name) {
  std::string what = concat("every key must be in a section, but ", shown(name), " is outside all sections");
  const std::string answer = foreign_name_answer("", name);
  if (!answer.empty()) return concat(what, "; ", answer);
  const std::vector<std::string> sections = section_names();
  if (std::find(sections.begin(), sections.end(), name) != sections.end()) {
    return concat("[", name, "] must be a section (a table), but is another kind of value; write [", name,
                  "] on a line of its own and its keys below it");
  }
  std::vector<std::string> meant = homonyms(name);
  if (meant.empty()) {
    std::vector<std::string> names;
    for (const Key& key : all_keys()) names.push_back(key.name);
    meant = homonyms(util::nearest_choice(name, names));
  }
  if (meant.empty() && !util::nearest_choice(name, {std::string(kIncludeKey)}).empty()) {
    meant.emplace_back(kIncludeKey);
  }
  if (!meant.empty()) return concat(what, "; did you mean ", util::join(meant, " or "), "?");
  return concat(what, "; the sections are ", util::join(sections, ", "));
}

std::string override_form_text(const std::string& name, bool has_value) {
  std::string text = concat("expected section.key=value, such as training.steps=100; found ",
                            name.empty() ? "no key" : shown(name), has_value ? " without a section" : "",
                            !has_value && !name.empty() ? " without a value" : "");
  const std::string answer = foreign_name_answer("", name);
  if (!answer.empty()) return concat(text, "; ", answer);
  std::vector<std::string> meant = homonyms(name);
  if (!meant.empty()) text += concat("; did you mean ", util::join(meant, "= or "), "=?");
  return text;
}

namespace {

using Kind = Literal::Kind;

/// Whether a float is an integer exactly, such as 1e6: above 2^53 several integers have one float.
bool is_whole(double number) {
  constexpr double kLargest = 9007199254740992.0;
  return std::abs(number) <= kLargest && std::trunc(number) == number;
}

/// The literal as a T, or nothing if it is of another type.
template <typename T>
std::optional<T> read_as(const Literal& literal) {
  if (literal.out_of_range) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    if (literal.kind == Kind::kString) return literal.text;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (literal.kind == Kind::kBool) return literal.boolean;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    if (literal.kind == Kind::kInteger) return literal.integer;
    if (literal.kind == Kind::kFloat && is_whole(literal.number)) return static_cast<int64_t>(literal.number);
  } else {
    static_assert(std::is_same_v<T, double>);
    if (literal.kind == Kind::kFloat) return literal.number;
    if (literal.kind == Kind::kInteger) return static_cast<double>(literal.integer);
  }
  return std::nullopt;
}

template <typename T>
struct IsList : std::false_type {};
template <typename T>
struct IsList<std::vector<T>> : std::true_type {};

template <typename T>
Value read_value(const Key& key, const Literal& literal) {
  if constexpr (std::is_same_v<T, ParameterGroups>) {
    if (literal.kind != Kind::kList)
      throw Misfit{misfit_text(key, "is " + described(literal)), literal.region};
    try {
      return read_groups(literal);
    } catch (const GroupMisfit& misfit) {
      throw Misfit{misfit_text(key, misfit.found), misfit.region};
    }
  } else if constexpr (IsList<T>::value) {
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {  // one word is a list of one
      if (literal.kind == Kind::kString && !literal.text.empty()) return T{literal.text};
    }
    if (literal.kind != Kind::kList)
      throw Misfit{misfit_text(key, "is " + described(literal)), literal.region};
    T items;
    for (const Literal& item : literal.items) {
      auto read = read_as<typename T::value_type>(item);
      if (!read) throw Misfit{misfit_text(key, "contains " + described(item)), item.region};
      items.push_back(*read);
    }
    return items;
  } else {
    if constexpr (std::is_same_v<T, std::string>) {  // an enum of "auto", "true" and "false" takes true
      const std::string word = literal.boolean ? "true" : "false";
      if (literal.kind == Kind::kBool && std::ranges::count(key.constraint.choices, word) > 0) return word;
    }
    auto read = read_as<T>(literal);
    if (!read) throw Misfit{misfit_text(key, "is " + described(literal), literal.text), literal.region};
    return *read;
  }
}

/// "; did you mean \"adamw\"?"; empty where no choice is near.
std::string nearest_value_text(const Key& key, const std::string& found) {
  Config defaults;
  const Value example = value_of(key, defaults);
  const bool is_text = std::holds_alternative<std::string>(example);
  std::vector<std::string> choices = key.constraint.choices;
  if (std::holds_alternative<bool>(example) && choices.empty()) choices = {"true", "false"};
  std::string near = foreign_value_choice(key.full_name(), found, choices);
  if (near.empty()) near = util::nearest_choice(found, choices);
  return near.empty() ? "" : concat("; did you mean ", is_text ? quoted_text(near) : near, "?");
}

}  // namespace

std::string misfit_text(const Key& key, const std::string& found, const std::string& word) {
  Config defaults;
  std::string text =
      key.full_name() + " must be " + expectation(key.constraint, value_of(key, defaults)) + ", but " + found;
  const std::string near = nearest_value_text(key, word);
  if (!near.empty()) return text + near;
  if (!key.constraint.because.empty()) text += " (" + key.constraint.because + ")";
  return text;
}

Value convert(const Key& key, const Literal& literal) {
  Config defaults;
  Value value =
      std::visit([&](const auto& held) { return read_value<std::decay_t<decltype(held)>>(key, literal); },
                 value_of(key, defaults));
  if (!allows(key.constraint, value)) {
    throw Misfit{misfit_text(key, "is " + clipped(toml_text(value)), literal.text), literal.region};
  }
  return value;
}

}  // namespace fsdp::config
