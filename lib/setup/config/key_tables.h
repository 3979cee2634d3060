#pragma once

// The parts of the table of keys (setup/config/keys.h), in its order.

#include <vector>

#include "base/util/registry.h"
#include "setup/config/keys.h"

/// Section, name and field of a key: names in TOML are those of the fields, so they cannot diverge.
#define KEY(section, name) \
#section, #name, [](Config & c) -> auto& { return c.section.name; }

/// The same for an optional field, whose default is `value`, an expression of Config& c.
#define OPEN_KEY(section, name, value)             \
#section, #name, [](Config & c) -> auto& {       \
    if (!c.section.name) c.section.name = (value); \
    return *c.section.name;                        \
  }

namespace fsdp::config {

/// One of the names in a registry; if there is only one, messages name the source of others.
template <typename Entry>
Constraint one_of_registered(const util::Registry<Entry>& registry) {
  Constraint constraint = one_of(registry.names());
  if (constraint.choices.size() == 1)
    constraint.because = "this version has no other; a plug-in can add more";
  return constraint;
}

/// Whether the run validates during training, not only after it.
Condition validates_regularly();

std::vector<Key> model_keys();
std::vector<Key> training_keys();
std::vector<Key> sharding_keys();
std::vector<Key> output_keys();

}  // namespace fsdp::config
