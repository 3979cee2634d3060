#pragma once

// The one table of configuration keys. Parsing, checking, --help, --print-config and the comparison of two
// configurations all walk it; a new option is one line in *_keys.cpp and one field in its room's struct.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"
#include "config/constraint.h"
#include "config/value.h"

namespace fsdp::config {

/// The field of a Config that a key sets. The types are those of Value, in the same order.
using Field =
    std::variant<std::string& (*)(Config&), int64_t& (*)(Config&), double& (*)(Config&), bool& (*)(Config&),
                 std::vector<std::string>& (*)(Config&), std::vector<double>& (*)(Config&),
                 std::vector<int64_t>& (*)(Config&), std::vector<optim::ParameterGroupOptions>& (*)(Config&)>;

struct Key {
  std::string section;
  std::string name;
  Field field;
  std::string description;  ///< one line
  Constraint constraint;
  std::string follows;  ///< the key of the same section whose value this one takes when it is not given
  std::string default_of = {};  ///< the key of the same section that decides this one's default

  std::string full_name() const { return section + "." + name; }
};

/// All keys; those of a section stand together. The default of a key is its field in Config{}.
const std::vector<Key>& all_keys();

/// Names of the sections, in the order of the table.
std::vector<std::string> section_names();

/// nullptr if there is no such key.
const Key* find_key(std::string_view section, std::string_view name);

Value value_of(const Key& key, Config& config);

/// `value` holds the type of the key's field.
void set_value(const Key& key, Config& config, const Value& value);

}  // namespace fsdp::config
