#pragma once

// The value of optimizer.groups: a list of tables.

#include <string>
#include <vector>

#include "config/parse.h"
#include "optim/options.h"

namespace fsdp::config {

using ParameterGroups = std::vector<optim::ParameterGroupOptions>;

/// [{ pattern = ["*norm*"], weight_decay = 0.0 }], as the inline tables of TOML.
std::string toml_text(const ParameterGroups& groups);

/// Whether each group has patterns and something to say of them, in numbers of at least 0, and not both of
/// lr and lr_scale.
bool are_allowed(const ParameterGroups& groups);

/// Why a literal is no list of such tables, and where.
struct GroupMisfit {
  std::string found;
  Region region;
};

/// The literal, which is a list, as groups. Throws GroupMisfit and nothing else.
ParameterGroups read_groups(const Literal& literal);

}  // namespace fsdp::config
