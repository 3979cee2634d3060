#pragma once

// The one table of configuration keys. Parsing, checking, --help, --print-config and the comparison of two
// configurations all walk it; a new option is one line in *_keys.cpp and one field in its component's struct.
// A field whose type is an enum with a table of names (util/enum_names.h) is a string in TOML, and takes the
// names of that table.

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "config/config.h"
#include "config/constraint.h"
#include "config/value.h"
#include "util/enum_names.h"

namespace fsdp::config {

/// A field that is an enum, as the string that names its value.
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

/// The value of a key that a plug-in has added: in Config::plugin_values.
struct PluginField {
  std::string key;  ///< full name
  util::PluginValue initial;
};

/// The field of a Config that a key sets: of a type of Value, or an enum, or a plug-in's.
using Field = std::variant<std::string& (*)(Config&), int64_t& (*)(Config&), double& (*)(Config&),
                           bool& (*)(Config&), std::vector<std::string>& (*)(Config&),
                           std::vector<double>& (*)(Config&), std::vector<int64_t>& (*)(Config&),
                           std::vector<optim::ParameterGroupOptions>& (*)(Config&), EnumField, PluginField>;

struct Key {
  std::string section;
  std::string name;
  Field field;
  std::string description;  ///< one line
  Constraint constraint;    ///< without choices for an enum: all_keys() adds the names of its table
  std::string follows;      ///< the key of the same section whose value this one takes when it is not given
  std::string default_of = {};  ///< the key of the same section that decides this one's default

  std::string full_name() const { return section + "." + name; }
};

/// All keys; those of a section stand together, those of plug-ins (config/plugins.h) last. The default of a
/// key is its field in Config{}.
const std::vector<Key>& all_keys();

/// Names of the sections, in the order of the table.
std::vector<std::string> section_names();

/// nullptr if there is no such key.
const Key* find_key(std::string_view section, std::string_view name);

Value value_of(const Key& key, Config& config);

/// `value` holds the type of the key's field.
void set_value(const Key& key, Config& config, const Value& value);

}  // namespace fsdp::config
