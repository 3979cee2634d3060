#pragma once

// The names of an enum's values, in one table beside the enum, for parsing, help and messages:
//
//   enum class Timing { kNow, kLater };
//   constexpr auto enum_names(Timing) {  // found by the enum's type, so in the enum's namespace
//     return std::to_array<util::EnumName<Timing>>({{Timing::kNow, "now"}, {Timing::kLater, "later"}});
//   }
//
// Options have the type Named<Timing>, to which C++ programs assign the value or its name. A config key of
// such a type needs only its line KEY(section, field) in setup/config/*_keys.cpp. Its choices are the names
// in the table (setup/config/keys.h).

#include <array>
#include <concepts>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::util {

template <typename E>
struct EnumName {
  E value;
  std::string_view name;
};

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

template <NamedEnum E>
std::optional<E> parse_enum(std::string_view text) {
  for (const auto& [value, name] : enum_names(E{})) {
    if (name == text) return value;
  }
  return std::nullopt;
}

/// Names of all values of E, in the order of the table.
template <NamedEnum E>
std::vector<std::string> names_of_enum() {
  std::vector<std::string> names;
  for (const auto& entry : enum_names(E{})) names.emplace_back(entry.name);
  return names;
}

/// An option of type E. It can be assigned a value or a name, options.strategy = "full_shard"; throws
/// Error(kUsage) if E has no such name.
template <NamedEnum E>
class Named {
 public:
  constexpr Named(E value) : value_(value) {}
  template <typename Text>
  requires std::convertible_to<Text, std::string_view> Named(const Text& name) : value_(parsed(name)) {}

  constexpr E value() const { return value_; }
  std::string name() const { return name_of(value_); }
  friend constexpr bool operator==(const Named&, const Named&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Named& option) { return out << option.name(); }

 private:
  static E parsed(std::string_view name) {
    if (const std::optional<E> value = parse_enum<E>(name)) return *value;
    fail(ErrorKind::kUsage, "expected one of ", join(names_of_enum<E>(), ", "), "; found \"", name,
         "\"; set it to one of these");
  }

  E value_;
};

template <typename Option>
struct EnumOf {
  using type = Option;
};
template <typename E>
struct EnumOf<Named<E>> {
  using type = E;
};

}  // namespace fsdp::util
