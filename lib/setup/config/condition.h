#pragma once

// Conditions under which a key of the table has an effect: "matters when optimizer.name is sgd or muon".

#include <functional>
#include <string>
#include <vector>

#include "setup/config/config.h"

namespace fsdp::config {

struct Condition {
  std::string words = {};              ///< "optimizer.name is sgd or muon"; empty: the key always matters
  std::vector<std::string> keys = {};  ///< full names of the keys that decide
  /// Predicate on a copy, which it may change, since the table has fields of a non-const Config. Empty:
  /// always.
  std::function<bool(Config&)> holds = {};
};

/// Holds if the key has one of these values: strings as they are, others as TOML.
Condition is(const std::string& key, const std::vector<std::string>& values);
Condition is_not(const std::string& key, const std::string& value);
Condition is_above_0(const std::string& key);
/// Holds if the string or list is not empty.
Condition is_given(const std::string& key);

Condition operator&&(const Condition& a, const Condition& b);
Condition operator||(const Condition& a, const Condition& b);

/// Hold if the architecture, optimizer or schedule reads this key of its section, or is of a plug-in, which
/// may read any key.
Condition architecture_reads(const std::string& key);
Condition optimizer_reads(const std::string& key);
Condition schedule_is(const std::vector<std::string>& names);

}  // namespace fsdp::config
