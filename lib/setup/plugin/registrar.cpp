#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "setup/config/load.h"
#include "setup/plugin/plugin.h"

namespace fsdp::plugin {

namespace {

void require_word(const std::string& what, const std::string& word) {
  const bool fits = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (fits) return;
  fail(ErrorKind::kUsage, "expected lower-case letters, digits and underscores as the name of ", what,
       "; found \"", word, "\"; choose another name");
}

}  // namespace

Registrar::Registrar(std::string plugin) : plugin_(std::move(plugin)) { require_word("a plug-in", plugin_); }

void Registrar::add_key(const std::string& name, util::PluginValue initial, std::string description,
                        config::Constraint constraint) {
  require_word("a key of " + plugin_, name);
  const std::string full_name = plugin_ + "." + name;
  for (const config::Key& key : keys_) {
    if (key.name == name)
      fail(ErrorKind::kUsage, full_name, " must be registered once, but is registered twice");
  }
  keys_.emplace_back(plugin_, name, config::PluginField{.key = full_name, .initial = std::move(initial)},
                     std::move(description), std::move(constraint));
}

void Registrar::add_model(const std::string& name, nn::ModelKind kind, const std::vector<std::string>& keys) {
  nn::Architecture architecture{.plugin = plugin_};
  for (const std::string& key : keys) {
    architecture.keys.push_back(key.find('.') == std::string::npos ? plugin_ + "." + key : key);
  }
  nn::register_model(name, std::move(architecture), std::move(kind));
}

void Registrar::add_objective(const std::string& name, const nn::Objective& objective) {
  FSDP_CHECK(objective.loss != nullptr && objective.rows != nn::ObjectiveRows::kTexts, name);
  nn::objectives().add(name, objective);
}

void Registrar::add_loss(const std::string& name, nn::LossFunction loss) {
  FSDP_CHECK(loss != nullptr, name);
  nn::losses().add(name, std::move(loss));
}

void Registrar::add_optimizer(const std::string& name, const optim::OptimizerTraits& traits,
                              optim::OptimizerFactory make) {
  FSDP_CHECK(make != nullptr, name);
  optim::register_optimizer(name, traits, std::move(make));
}

void Registrar::add_schedule(const std::string& name, optim::ScheduleShape shape) {
  FSDP_CHECK(shape != nullptr, name);
  optim::schedule_shapes().add(name, std::move(shape));
}

void Registrar::add_dataset(const std::string& name, data::OpenSamples open) {
  FSDP_CHECK(open != nullptr, name);
  data::datasets().add(name, std::move(open));
}

void Registrar::finish() { config::add_plugin_section(plugin_, std::move(keys_)); }

}  // namespace fsdp::plugin
