#include "config/convert.h"

#include <optional>
#include <type_traits>

#include "config/parameter_groups.h"
#include "config/suggest.h"

namespace fsdp::config {
namespace {

using Kind = Literal::Kind;

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
    if (literal.kind != Kind::kList) throw Misfit{misfit_text(key, described(literal)), literal.region};
    try {
      return read_groups(literal);
    } catch (const GroupMisfit& misfit) {
      throw Misfit{misfit_text(key, misfit.found), misfit.region};
    }
  } else if constexpr (IsList<T>::value) {
    if (literal.kind != Kind::kList) throw Misfit{misfit_text(key, described(literal)), literal.region};
    T items;
    for (const Literal& item : literal.items) {
      auto read = read_as<typename T::value_type>(item);
      if (!read) throw Misfit{misfit_text(key, described(item) + " in the list"), item.region};
      items.push_back(*read);
    }
    return items;
  } else {
    auto read = read_as<T>(literal);
    if (!read) throw Misfit{misfit_text(key, described(literal), literal.text), literal.region};
    return *read;
  }
}

}  // namespace

std::string misfit_text(const Key& key, const std::string& found, const std::string& word) {
  Config defaults;
  std::string text = key.full_name() + ": expected " + expectation(key.constraint, value_of(key, defaults)) +
                     "; found " + found;
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
    throw Misfit{misfit_text(key, clipped(toml_text(value)), literal.text), literal.region};
  }
  return value;
}

}  // namespace fsdp::config
