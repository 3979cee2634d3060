#pragma once

// The table of configuration keys, from which parsing, checks, --help, --print-config and the comparison of
// configurations follow: a new option is one line in *_keys.cpp and one field in its component's struct. A
// field whose type is an enum with a table of names (base/util/enum_names.h) is a string in TOML with these
// names.

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/util/enum_names.h"
#include "setup/config/condition.h"
#include "setup/config/config.h"
#include "setup/config/value.h"

namespace fsdp::config {

/// An enum field, accessed as the name of its value.
struct EnumField {
  /// `get` is a lambda without captures from a Config& to the field.
  template <typename Get,
            typename E =
                typename util::EnumOf<std::remove_reference_t<std::invoke_result_t<Get, Config&>>>::type>
  requires util::NamedEnum<E> EnumField(Get)
      : name([](Config& config) { return util::Named<E>(Get{}(config)).name(); }),
        set([](Config& config, const std::string& name) {
          Get{}(config) = util::parse_enum<E>(name).value();
        }),
        names(util::names_of_enum<E>) {}

  std::string (*name)(Config&);
  void (*set)(Config&, const std::string& name);  ///< the name is one of `names`
  std::vector<std::string> (*names)();
};

/// A key that a plug-in has added; its value is in Config::plugin_values.
struct PluginField {
  std::string key;  ///< full name
  util::PluginValue initial;
};

/// The field that a key sets: of a type of Value, an enum, or a plug-in's.
using Field = std::variant<std::string& (*)(Config&), int64_t& (*)(Config&), double& (*)(Config&),
                           bool& (*)(Config&), std::vector<std::string>& (*)(Config&),
                           std::vector<double>& (*)(Config&), std::vector<int64_t>& (*)(Config&),
                           std::vector<optim::ParameterGroupOptions>& (*)(Config&), EnumField, PluginField>;

struct Key {
  Key(std::string section, std::string name, Field field, std::string description, Constraint constraint = {},
      Condition matters = {}, std::string follows = {}, std::string default_of = {})
      : section(std::move(section)),
        name(std::move(name)),
        field(std::move(field)),
        description(std::move(description)),
        constraint(std::move(constraint)),
        matters(std::move(matters)),
        follows(std::move(follows)),
        default_of(std::move(default_of)) {}
  /// A key that may have any value of its type.
  Key(std::string section, std::string name, Field field, std::string description, Condition matters,
      std::string follows = {}, std::string default_of = {})
      : Key(std::move(section), std::move(name), std::move(field), std::move(description), Constraint(),
            std::move(matters), std::move(follows), std::move(default_of)) {}

  std::string section;
  std::string name;
  Field field;
  std::string description;      ///< one line
  Constraint constraint = {};   ///< all_keys() adds the choices of an enum
  Condition matters = {};       ///< if it does not hold, a value that the user gave is refused or ignored
  std::string follows = {};     ///< key of the same section that gives the default value
  std::string default_of = {};  ///< key of the same section that determines the default

  std::string full_name() const { return section + "." + name; }
};

/// All keys, grouped by section, those of plug-ins last. The default of a key is its field in Config{}.
const std::vector<Key>& all_keys();

/// Names of the sections, in the order of the table.
std::vector<std::string> section_names();

/// Adds the keys of a plug-in, as the new section `section`, to all_keys(), and the names that the plug-in
/// has registered to the choices of model.architecture and the like. Invalidates pointers into all_keys().
/// Throws Error(kUsage) if the section exists.
void add_plugin_section(const std::string& section, std::vector<Key> keys);

/// nullptr if there is no such key.
const Key* find_key(std::string_view section, std::string_view name);

Value value_of(const Key& key, Config& config);

/// `value` must hold the type of the key's field.
void set_value(const Key& key, Config& config, const Value& value);

}  // namespace fsdp::config
