#pragma once

// The options of [model] that describe a model's shape, by name: their fields, and the values that they can
// have.

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "model/families/options.h"

namespace fsdp::nn {

// Upper bounds keep products such as batch * sequence * vocabulary inside 64 bits; no real model comes near.
inline constexpr int64_t kMostVocabulary = 10'000'000, kMostWidth = 1'000'000, kMostLayers = 10'000,
                         kMostHeads = 1024, kMostPositions = 10'000'000, kMostExperts = 10'000;

/// Values of an option in config.json.
enum class OptionRange {
  kAny,             ///< any value of the field's type
  kSize,            ///< a whole number from 1 to OptionRule::most
  kSizeOrNone,      ///< the same, or null for 0
  kPositive,        ///< a number above 0
  kPositiveOrNone,  ///< the same, or null for 0
  kNotNegative,     ///< a number of at least 0
  kShare,           ///< a number from 0 to below 1
  kElsewhere,       ///< the option has no key of its own
};

struct OptionRule {
  std::string_view name;  ///< the field's
  std::variant<int64_t ModelOptions::*, double ModelOptions::*, bool ModelOptions::*,
               Activation ModelOptions::*, util::Named<RopeType> ModelOptions::*,
               std::vector<double> ModelOptions::*>
      field;
  OptionRange range = OptionRange::kAny;
  int64_t most = 0;  ///< largest size
  /// Architectures that do not have the option refuse other values than the default.
  bool is_exclusive = true;

  /// Whether both options have the same value.
  bool is_equal(const ModelOptions& a, const ModelOptions& b) const;
};

const std::vector<OptionRule>& option_rules();
/// Throws if there is no option of the name.
const OptionRule& option_rule(std::string_view name);

}  // namespace fsdp::nn
