#include "config_words.h"

#include "base/util/error.h"
#include "setup/config/keys.h"
#include "setup/config/load.h"
#include "setup/config/print.h"
#include "setup/plugin/load.h"

namespace fsdp::apps {

std::vector<cli::Word> config_words() {
  config::Config defaults;
  std::vector<cli::Word> words;
  for (const config::Key& key : config::all_keys()) {
    const config::Value value = config::value_of(key, defaults);
    const std::string bounds = config::limits(key.constraint, value);
    cli::Word word{key.full_name(), key.description, key.constraint.choices};
    if (std::holds_alternative<bool>(value)) word.values = {"true", "false"};
    word.meaning += "; " + config::type_name(value) + (bounds.empty() ? "" : ", " + bounds);
    word.meaning += "; default " + (key.follows.empty() ? config::toml_text(value) : key.follows);
    words.push_back(word);
  }
  return words;
}

std::string keys_for_help(const std::vector<std::string>& plugins) {
  plugin::load_with_configs(plugins, plugin::OfConfigs::kAreRefused);
  try {
    config::load_plugins({}, config::PluginsNamedBy::kUser);
  } catch (const util::Error&) {  // reported when the configuration is loaded
  }
  return "Keys of the config:\n\n" + config::key_reference();
}

}  // namespace fsdp::apps
