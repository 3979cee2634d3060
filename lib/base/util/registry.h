#pragma once

// Entries that a config selects by name: built-in ones and those of plug-ins.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::util {

/// Entries in the order in which they were added. Not thread-safe: add entries before other threads read.
template <typename Entry>
class Registry {
 public:
  struct Named {
    std::string name;
    Entry entry;
  };

  /// `kind` names the entries in messages: "optimizer".
  Registry(std::string kind, std::vector<Named> built_in)
      : kind_(std::move(kind)), entries_(std::move(built_in)) {}

  /// Adds an entry. Throws Error(kUsage) if the name is empty or taken.
  void add(std::string name, Entry entry) {
    if (name.empty() || find(name) != nullptr) {
      fail(ErrorKind::kUsage, "the name of each ", kind_, " must be unique, but \"", name,
           "\" is taken; choose another name");
    }
    entries_.push_back({std::move(name), std::move(entry)});
  }

  /// Returns the entry of that name, or null. The pointer is valid until the next add().
  const Entry* find(std::string_view name) const {
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const Named& each) { return each.name == name; });
    return found == entries_.end() ? nullptr : &found->entry;
  }

  /// Returns the entry of that name. Throws Error(kUsage) if there is none, naming `key`, the config key.
  const Entry& get(std::string_view name, const char* key) const {
    if (const Entry* entry = find(name)) return *entry;
    const std::string near = nearest(name, names());
    fail(ErrorKind::kUsage, "unknown ", key, " \"", name, "\"; expected one of: ", join(names(), ", "),
         near.empty() ? "" : "; did you mean \"" + near + "\"?");
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Named& each : entries_) names.push_back(each.name);
    return names;
  }

 private:
  std::string kind_;
  std::vector<Named> entries_;
};

}  // namespace fsdp::util
