#pragma once

// The parts of the table of keys (config/keys.h), in its order.

#include <vector>

#include "config/keys.h"
#include "util/registry.h"

/// Section, name and field of a key at once: names in TOML are those of the fields, so they cannot drift.
#define KEY(section, name) \
#section, #name, [](Config & c) -> auto& { return c.section.name; }

/// The same for a field that may be left open, and then stands for `value`, an expression of Config& c.
#define OPEN_KEY(section, name, value)             \
#section, #name, [](Config & c) -> auto& {       \
    if (!c.section.name) c.section.name = (value); \
    return *c.section.name;                        \
  }

namespace fsdp::config {

/// The names that a registry has; of those that have one only, the message says where others come from.
template <typename Entry>
Constraint one_of_registered(const util::Registry<Entry>& registry) {
  Constraint constraint = one_of(registry.names());
  if (constraint.choices.size() == 1)
    constraint.because = "this version has no other; a plug-in can add some";
  return constraint;
}

std::vector<Key> model_keys();
std::vector<Key> training_keys();
std::vector<Key> sharding_keys();
std::vector<Key> output_keys();

}  // namespace fsdp::config
