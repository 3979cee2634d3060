#include "setup/config/keys.h"

#include <algorithm>
#include <iterator>

#include "base/util/error.h"
#include "setup/config/key_tables.h"
#include "setup/config/load.h"

namespace fsdp::config {
namespace {

struct KeyTable {
  std::vector<Key> plugin_keys;
  std::vector<Key> all;

  KeyTable() { build(); }
  void build() {
    all.clear();
    for (const auto& keys : {model_keys(), training_keys(), sharding_keys(), output_keys(), plugin_keys}) {
      all.insert(all.end(), keys.begin(), keys.end());
    }
    for (Key& key : all) {
      if (const auto* field = std::get_if<EnumField>(&key.field)) key.constraint.choices = field->names();
    }
  }
};

KeyTable& table() {
  static KeyTable table;
  return table;
}

Value as_value(const util::PluginValue& value) {
  return std::visit([](const auto& held) -> Value { return held; }, value);
}

util::PluginValue as_plugin_value(const Value& value) {
  return std::visit(
      [](const auto& held) -> util::PluginValue {
        if constexpr (std::is_constructible_v<util::PluginValue, decltype(held)>) {
          return held;
        } else {
          FSDP_CHECK(false, "a plug-in has no key of parameter groups");
        }
      },
      value);
}

}  // namespace

const std::vector<Key>& all_keys() { return table().all; }

void add_plugin_section(const std::string& section, std::vector<Key> keys) {
  const std::vector<std::string> sections = section_names();
  if (std::find(sections.begin(), sections.end(), section) != sections.end()) {
    fail(ErrorKind::kUsage, "the name of a plug-in must not be that of a section of the config, but is ",
         section, "; choose another name");
  }
  std::vector<Key>& known = table().plugin_keys;
  known.insert(known.end(), std::make_move_iterator(keys.begin()), std::make_move_iterator(keys.end()));
  table().build();
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
        } else if constexpr (std::is_same_v<decltype(field), PluginField>) {
          const util::PluginValue* set = config.plugin_values.find(field.key);
          return as_value(set != nullptr ? *set : field.initial);
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
        } else if constexpr (std::is_same_v<decltype(field), PluginField>) {
          config.plugin_values.set(field.key, as_plugin_value(value));
        } else {
          using Held = std::remove_reference_t<decltype(field(config))>;
          field(config) = std::get<Held>(value);
        }
      },
      key.field);
}

}  // namespace fsdp::config
