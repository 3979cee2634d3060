#include "setup/config/condition.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "model/families/architectures.h"
#include "setup/config/keys.h"
#include "state/groups/learning_rate.h"
#include "state/groups/parameter_groups.h"

namespace fsdp::config {
namespace {

using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string text_of(const std::string& name, Config& config) {
  const size_t dot = name.find('.');
  const Key* key = find_key(name.substr(0, dot), name.substr(dot + 1));
  FSDP_CHECK(key != nullptr, name);
  const Value value = value_of(*key, config);
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : toml_text(value);
}

/// "a, b or c"
std::string alternatives(const Names& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

/// The names of the registry's entries that `reads` accepts.
template <typename Entry, typename Reads>
Names readers(const util::Registry<Entry>& registry, const Reads& reads) {
  Names names;
  for (const std::string& name : registry.names()) {
    if (reads(*registry.find(name))) names.push_back(name);
  }
  return names;
}

Condition joined(const Condition& a, const Condition& b, std::string words, bool both) {
  Names keys = a.keys;
  for (const std::string& key : b.keys) {
    if (!contains(keys, key)) keys.push_back(key);
  }
  return {std::move(words), std::move(keys), [a = a.holds, b = b.holds, both](Config& config) {
            return both ? a(config) && b(config) : a(config) || b(config);
          }};
}

}  // namespace

Condition is(const std::string& key, const Names& values) {
  return {concat(key, " is ", alternatives(values)), {key}, [key, values](Config& config) {
            return contains(values, text_of(key, config));
          }};
}

Condition is_not(const std::string& key, const std::string& value) {
  return {concat(key, " is not ", value), {key}, [key, value](Config& config) {
            return text_of(key, config) != value;
          }};
}

Condition is_above_0(const std::string& key) {
  return {key + " is above 0", {key}, [key](Config& config) {
            const std::string text = text_of(key, config);
            return text != "0" && text != "0.0";
          }};
}

Condition is_given(const std::string& key) {
  return {key + " is given", {key}, [key](Config& config) {
            const std::string text = text_of(key, config);
            return !text.empty() && text != "[]";
          }};
}

Condition operator&&(const Condition& a, const Condition& b) {
  const bool is_clear = a.words.find(" or ") == std::string::npos;
  return joined(a, b, concat(a.words, is_clear ? " and " : ", and ", b.words), true);
}

Condition operator||(const Condition& a, const Condition& b) {
  return joined(a, b, concat(a.words.starts_with("either ") ? "" : "either ", a.words, ", or ", b.words),
                false);
}

Condition architecture_reads(const std::string& key) {
  const auto reads = [name = "model." + key](const nn::Architecture& each) {
    return contains(each.keys, name);
  };
  Condition condition = is("model.architecture", readers(nn::architectures(), reads));
  condition.holds = [reads](Config& config) {
    const nn::Architecture* found = nn::architectures().find(config.model.architecture);
    return found == nullptr || !found->plugin.empty() || reads(*found);
  };
  return condition;
}

Condition optimizer_reads(const std::string& key) {
  const auto reads = [key](const optim::OptimizerTraits& each) {
    return each.keys && contains(*each.keys, key);
  };
  Condition condition = is("optimizer.name", readers(optim::optimizer_traits(), reads));
  condition.holds = [reads](Config& config) {
    const optim::OptimizerTraits* found = optim::optimizer_traits().find(config.optimizer.name);
    return found == nullptr || !found->keys || reads(*found);
  };
  return condition;
}

Condition schedule_is(const Names& names) {
  Condition condition = is("lr_scheduler.name", names);
  condition.holds = [names](Config& config) {
    const std::string& name = config.lr_scheduler.name;
    return contains(names, name) || !optim::is_built_in_schedule(name);
  };
  return condition;
}

}  // namespace fsdp::config
