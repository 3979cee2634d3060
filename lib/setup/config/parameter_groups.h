#pragma once

// The value of optimizer.groups: a list of tables.

#include <string>
#include <vector>

#include "setup/config/parse.h"
#include "state/groups/options.h"

namespace fsdp::config {

using ParameterGroups = std::vector<optim::ParameterGroupOptions>;

/// The groups as inline tables: [{ pattern = ["*norm*"], weight_decay = 0.0 }].
std::string toml_text(const ParameterGroups& groups);

/// Whether each group has patterns and at least one setting, all settings are >= 0, and lr and lr_scale are
/// not both set.
bool are_allowed(const ParameterGroups& groups);

/// Reason why a literal is not a list of such tables, and the literal's place.
struct GroupMisfit {
  std::string found;  ///< a predicate: "is a table"
  Region region;
};

/// Converts a literal that is a list. Throws only GroupMisfit.
ParameterGroups read_groups(const Literal& literal);

}  // namespace fsdp::config
