#pragma once

// Checks of names that a user wrote against those that the model has. Each throws Error(kUsage) for the first
// that fits nothing, with what there is and the nearest of it.

#include <string>
#include <vector>

namespace fsdp::shard {

/// Names as an option gives them.
struct GivenNames {
  const char* option;                     ///< "fsdp.wrap_stages", for the message
  const std::vector<std::string>& names;  ///< or patterns, see util/text.h
};

/// Each given name must be one of `known`, the types of the model's stages.
void check_stage_types(const GivenNames& given, const std::vector<std::string>& known);

/// Each given pattern must match one of `known`, the names of the model's parameters.
void check_parameter_patterns(const GivenNames& given, const std::vector<std::string>& known);

/// Each given pattern must match one of `known`, the names of the units.
void check_unit_patterns(const GivenNames& given, const std::vector<std::string>& known);

}  // namespace fsdp::shard
