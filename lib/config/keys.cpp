#include "config/keys.h"

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "config/key_tables.h"

namespace fsdp::config {
namespace {

std::vector<Key> joined(std::initializer_list<std::vector<Key>> tables) {
  std::vector<Key> keys;
  for (const std::vector<Key>& table : tables) keys.insert(keys.end(), table.begin(), table.end());
  for (Key& key : keys) {
    if (const auto* field = std::get_if<EnumField>(&key.field)) key.constraint.choices = field->names();
  }
  return keys;
}

}  // namespace

const std::vector<Key>& all_keys() {
  static const std::vector<Key> keys =
      joined({model_keys(), training_keys(), sharding_keys(), output_keys()});
  return keys;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Key& key : all_keys()) {
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  }
  return names;
}

const Key* find_key(std::string_view section, std::string_view name) {
  const std::vector<Key>& keys = all_keys();
  auto found = std::find_if(keys.begin(), keys.end(),
                            [&](const Key& key) { return key.section == section && key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

Value value_of(const Key& key, Config& config) {
  return std::visit(
      [&config](auto field) -> Value {
        if constexpr (std::is_same_v<decltype(field), EnumField>) {
          return field.name(config);
        } else {
          return field(config);
        }
      },
      key.field);
}

void set_value(const Key& key, Config& config, const Value& value) {
  std::visit(
      [&](auto field) {
        if constexpr (std::is_same_v<decltype(field), EnumField>) {
          field.set(config, std::get<std::string>(value));
        } else {
          using Held = std::remove_reference_t<decltype(field(config))>;
          field(config) = std::get<Held>(value);
        }
      },
      key.field);
}

}  // namespace fsdp::config
