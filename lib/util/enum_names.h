#pragma once

// The names of an enum's values, in one table beside the enum, which parsing, help and messages read:
//
//   enum class Backend { kAuto, kShm };
//   constexpr auto enum_names(Backend) {  // found by the enum's type, so in the enum's namespace
//     return std::to_array<util::EnumName<Backend>>({{Backend::kAuto, "auto"}, {Backend::kShm, "shm"}});
//   }
//
// A config key of such a type needs no more than its line KEY(section, field) in config/*_keys.cpp: its
// choices are the names of the table, in the order of the table (config/keys.h).

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "util/error.h"

namespace fsdp::util {

template <typename E>
struct EnumName {
  E value;
  std::string_view name;
};

/// An enum with a table of names.
template <typename E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  enum_names(value).size();
};

template <NamedEnum E>
std::string name_of(E value) {
  for (const auto& [known, name] : enum_names(value)) {
    if (known == value) return std::string(name);
  }
  fail(ErrorKind::kUnexpected, "value ", static_cast<long long>(value), " of an enum has no name");
}

/// Nothing for an unknown name.
template <NamedEnum E>
std::optional<E> parse_enum(std::string_view text) {
  for (const auto& [value, name] : enum_names(E{})) {
    if (name == text) return value;
  }
  return std::nullopt;
}

/// All names, in the order of the table.
template <NamedEnum E>
std::vector<std::string> names_of_enum() {
  std::vector<std::string> names;
  for (const auto& entry : enum_names(E{})) names.emplace_back(entry.name);
  return names;
}

}  // namespace fsdp::util
