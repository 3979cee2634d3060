#pragma once

// Values of plug-ins' config keys (setup/plugin/plugin.h), which are part of the components' options.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/util/error.h"

namespace fsdp::util {

/// The value of a plug-in's key.
using PluginValue = std::variant<std::string, int64_t, double, bool, std::vector<std::string>,
                                 std::vector<double>, std::vector<int64_t>>;

/// Values by the keys' full names, such as "mine.width_factor".
class PluginValues {
 public:
  /// Throws Error(kUsage) if no loaded plug-in has added the key, or if its type is not T.
  template <typename T>
  const T& get(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      fail(ErrorKind::kUsage, "no plug-in has added the key ", key);
    }
    if (const T* value = std::get_if<T>(&found->second)) return *value;
    fail(ErrorKind::kUsage, "the key ", key, " is of another type than the requested one");
  }
  const PluginValue* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  void set(const std::string& key, PluginValue value) { values_[key] = std::move(value); }

  bool operator==(const PluginValues&) const = default;

 private:
  std::map<std::string, PluginValue> values_;
};

}  // namespace fsdp::util
