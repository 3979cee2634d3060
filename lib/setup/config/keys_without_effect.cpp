// Loader: given keys that others leave without effect.

#include <algorithm>
#include <set>

#include "base/util/error.h"
#include "setup/config/convert.h"
#include "setup/config/loader.h"

namespace fsdp::config {

void Loader::drop_keys_without_effect() {
  Config as_given = config_;
  std::set<std::string> wrong;  // what depends on these is not known
  for (const auto& [name, given] : given_) {
    if (given.is_wrong) wrong.insert(name);
  }
  // A key that is dropped may leave others without effect.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Key& key : all_keys()) {
      const std::vector<std::string>& deciding = key.matters.keys;
      Config now = config_;
      if (deciding.empty() || key.matters.holds(now) ||
          std::any_of(deciding.begin(), deciding.end(),
                      [&](const auto& name) { return wrong.contains(name); })) {
        continue;
      }
      Config defaults;
      const Value initial =
          key.follows.empty() ? value_of(key, defaults) : value_of(*find_key(key.section, key.follows), now);
      if (value_of(key, now) == initial) continue;
      report_without_effect(key, as_given);
      set_value(key, config_, initial);
      changed = true;
    }
  }
  for (const std::string& name : dropped_) given_.erase(name);
}

/// Reports a key that has no effect. That is an error, but only a warning if a later layer has changed the
/// key on which it depends, as optimizer.name=sgd on the command line does for betas in the file.
void Loader::report_without_effect(const Key& key, Config& config) {
  const std::string name = key.full_name();
  const auto found = given_.find(name);
  if (found == given_.end() || found->second.layer == 0) return;
  Given& given = found->second;
  bool has_later = false;
  std::string others;
  for (const std::string& each : key.matters.keys) {
    const size_t dot = each.find('.');
    const Key& deciding = *find_key(each.substr(0, dot), each.substr(dot + 1));
    const auto other = given_.find(each);
    const bool is_given = other != given_.end();
    // Its default may be another key's.
    const auto origin = is_given || deciding.default_of.empty()
                            ? other
                            : given_.find(concat(deciding.section, ".", deciding.default_of));
    has_later = has_later || (origin != given_.end() && origin->second.layer > given.layer);
    others +=
        concat(others.empty() ? "" : " and ", each, " = ", toml_text(value_of(deciding, config)), " (",
               is_given ? other->second.source->where(other->second.region) : default_origin(deciding), ")");
  }
  const std::string value = toml_text(value_of(key, config));
  if (has_later) {
    warnings_.push_back(concat(given.source->where(given.region), ": ", name, " = ", value,
                               " is ignored, because it matters only when ", key.matters.words, "; found ",
                               others, "; leave it out if that is to stay"));
    dropped_.push_back(name);
  } else {
    given.is_wrong = true;
    report_.add(*given.source, given.region,
                concat(name, " matters only when ", key.matters.words, ", but is ", value, " with ", others,
                       "; leave it out, or change what it depends on"));
  }
}

}  // namespace fsdp::config
