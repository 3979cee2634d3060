#include "setup/config/loader.h"

#include <algorithm>

#include "base/util/error.h"
#include "setup/config/checks.h"
#include "setup/config/convert.h"
#include "setup/config/foreign_names.h"
#include "setup/config/include.h"
#include "setup/config/load.h"
#include "setup/config/presets.h"

namespace fsdp::config {

namespace {

std::string trimmed(const std::string& text) {
  size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The place of an entry's key if it is on the line of its value, else of the value.
Region key_region(const Source& source, const TomlEntry& entry) {
  Region region = entry.value.region;
  size_t at = source.line(region.line).substr(0, region.column).rfind(entry.name);
  if (!entry.name.empty() && at != std::string_view::npos) {
    region.column = at;
    region.length = entry.name.size();
  }
  return region;
}

/// Returns the sections whose unknown keys are reported one by one: ours, and those with a name of another
/// trainer.
std::set<std::string> sections_by_key(const std::vector<TomlEntry>& entries) {
  const std::vector<std::string> known = section_names();
  std::set<std::string> sections(known.begin(), known.end());
  for (const TomlEntry& entry : entries) {
    const bool is_key = !entry.section.empty() && !entry.name.empty();
    if (is_key && !foreign_name_answer(entry.section, entry.name).empty()) sections.insert(entry.section);
  }
  return sections;
}

/// Why an override cannot be parsed.
std::optional<std::string> override_defect(const Source& source) {
  if (source.line_count() != 1) return "expected section.key=value on one line; found a line break";
  if (auto defect = byte_defect(source)) return defect->message;
  return std::nullopt;
}

}  // namespace

std::vector<std::string> named_plugins(const std::deque<Source>& files,
                                       const std::vector<std::string>& overrides,
                                       std::optional<PluginPlace>* place) {
  std::vector<std::string> named;
  const auto read = [&](const Source& from, bool is_file) {
    try {
      for (const TomlEntry& entry : parse_toml(from)) {
        if (entry.section != "run" || entry.name != "plugins") continue;
        named = std::get<std::vector<std::string>>(convert(*find_key("run", "plugins"), entry.value));
        if (place) *place = is_file ? std::optional(PluginPlace{&from, entry.value.region}) : std::nullopt;
      }
    } catch (const SyntaxError&) {  // reported when the text is read
    } catch (const Misfit&) {
    }
  };
  for (const Source& file : files) read(file, true);
  for (const std::string& text : overrides) {
    const Source from = Source::from_override(text);
    if (!override_defect(from) && trimmed(text.substr(0, text.find('='))) == "run.plugins") read(from, false);
  }
  return named;
}

/// Only a file of the user's includes others: one beside checkpoints may come from anybody, as may a text
/// from a manifest, and both have every key themselves.
void Loader::open(Source file) {
  may_include_ = file.is_file() && completeness_ == Completeness::kMayLackTheModel;
  if (may_include_) {
    files_ = with_included(std::move(file), report_);
  } else {
    files_.push_back(std::move(file));
  }
}

void Loader::load_plugins(const std::vector<std::string>& overrides) {
  std::optional<PluginPlace> place;
  const std::vector<std::string> named = named_plugins(files_, overrides, &place);
  try {
    plugins_ = config::load_plugins(
        named, completeness_ == Completeness::kIsWhole ? PluginsNamedBy::kStoredFile : PluginsNamedBy::kUser);
  } catch (const util::Error& error) {
    if (!place) throw;
    Report report;  // only this problem: without its plug-ins most of a configuration may be unknown
    report.add(*place->source, place->region, error.what());
    report.throw_if_any();
  }
}

void Loader::read_files() {
  for (const Source& file : files_) read_file(file);
}

void Loader::read_file(const Source& source) {
  std::vector<TomlEntry> entries;
  try {
    entries = parse_toml(source);
  } catch (const SyntaxError& error) {
    report_.add(source, error.region, error.message);
    file_was_read_ = false;
    return;
  }
  ++layer_;
  const std::set<std::string> by_key = sections_by_key(entries);
  for (const TomlEntry& entry : entries) {
    const Key* key = find_key(entry.section, entry.name);
    if (key) {
      apply(*key, entry.value, source);
    } else if (!may_include_ || !entry.section.empty() || entry.name != kIncludeKey) {
      refuse_unknown(source, entry, by_key);
    }
  }
}

void Loader::refuse_unknown(const Source& source, const TomlEntry& entry,
                            const std::set<std::string>& by_key) {
  const bool reports_keys = by_key.contains(entry.section);
  if (entry.section.empty()) {
    report_.add(source, key_region(source, entry), top_level_text(entry.name));
  } else if (entry.name.empty()) {
    if (!reports_keys) report_.add(source, entry.value.region, unknown_section_text(entry.section));
  } else if (reports_keys) {
    report_.add(source, key_region(source, entry), unknown_key_text(entry.section, entry.name));
  }
}

void Loader::apply(const Key& key, const Literal& literal, const Source& source) {
  Given& given = given_[key.full_name()];
  given.source = &source;
  given.layer = layer_;
  given.region = literal.region;
  try {
    set_value(key, config_, convert(key, literal));
  } catch (const Misfit& misfit) {
    given.is_wrong = true;
    report_.add(source, misfit.region, misfit.message);
  }
}

void Loader::read_overrides(const std::vector<std::string>& texts) {
  ++layer_;
  for (const std::string& text : texts) read_override(text);
}

void Loader::read_override(const std::string& text) {
  const Source& source = override_sources_.emplace_back(Source::from_override(text));
  const Region whole{.line = 1, .column = 0, .length = text.size()};
  if (auto defect = override_defect(source)) {
    report_.add(source, whole, *defect);
    return;
  }
  size_t equals = text.find('=');
  std::string name = trimmed(text.substr(0, equals));
  size_t dot = name.find('.');
  if (equals == std::string::npos || dot == std::string::npos) {
    report_.add(source, whole, override_form_text(name, equals != std::string::npos));
    return;
  }
  std::string section = name.substr(0, dot);
  const Key* key = find_key(section, name.substr(dot + 1));
  if (!key) {
    report_.add(source, Region{.line = 1, .column = 0, .length = equals},
                unknown_key_text(section, name.substr(dot + 1)));
    return;
  }
  std::string value = trimmed(text.substr(equals + 1));
  Region value_region{.line = 1, .column = equals + 1, .length = text.size() - equals - 1};
  bool is_string = std::holds_alternative<std::string>(value_of(*key, config_));
  if (is_string && !value.starts_with('"') && !value.starts_with('\'')) {
    Literal literal;
    literal.kind = Literal::Kind::kString;
    literal.text = value;
    literal.region = value_region;
    apply(*key, literal, source);
    return;
  }
  try {
    // section.key=value is TOML.
    for (const TomlEntry& entry : parse_toml(source)) {
      if (entry.section == key->section && entry.name == key->name) apply(*key, entry.value, source);
    }
  } catch (const SyntaxError&) {
    given_[key->full_name()] = {&source, layer_, value_region, true};
    report_.add(
        source, value_region,
        misfit_text(*key, value.empty() ? "is empty" : "is " + clipped(value) + ", which is not a TOML value",
                    value));
  }
}

/// A key whose default is not a valid value has to be given.
void Loader::check_defaults() {
  for (const Key& key : all_keys()) {
    bool is_given = given_.contains(key.full_name());
    if (!is_given && !allows(key.constraint, value_of(key, config_))) {
      given_[key.full_name()].is_wrong = true;
      report_.add(file(), std::nullopt, misfit_text(key, "is missing"));
    }
  }
}

void Loader::check_conflicts() {
  for (const Conflict& conflict : find_conflicts(config_)) {
    const Given* place = nullptr;
    bool is_reported = false;
    for (const std::string& name : conflict.keys) {
      auto found = given_.find(name);
      if (found == given_.end()) continue;
      is_reported = is_reported || found->second.is_wrong;
      if (!place) place = &found->second;
    }
    if (is_reported) continue;
    if (place) {
      report_.add(*place->source, place->region, conflict.message);
    } else {
      report_.add(file(), std::nullopt, conflict.message);
    }
  }
}

/// Given keys take precedence over the preset.
void Loader::apply_preset() {
  const ModelPreset* preset = find_model_preset(config_.model.preset);
  if (!preset) return;
  const Source& source = preset_source_.emplace(Source::from_text("preset " + preset->name, preset->toml));
  layer_ = 0;
  for (const TomlEntry& entry : parse_toml(source)) {
    const Key* key = find_key(entry.section, entry.name);
    if (!key || given_.contains(key->full_name())) continue;  // no key: the section's own entry
    apply(*key, entry.value, source);
  }
}

bool Loader::has(const Key& key) const {
  const auto found = given_.find(key.full_name());
  return found != given_.end() && !found->second.is_wrong;
}

Config Loader::finish() {
  config_.run.plugins = plugins_;
  apply_preset();
  apply_stored_model();
  for (const Key& key : all_keys()) {
    const std::string name = key.full_name();
    if (key.follows.empty() || given_.contains(name) || stored_.contains(name)) continue;
    const Key* followed = find_key(key.section, key.follows);
    FSDP_CHECK(followed, key.full_name(), " follows an unknown key");
    set_value(key, config_, value_of(*followed, config_));
  }
  if (config_.training.global_batch_size > 0 && !given_.contains("training.gradient_accumulation_steps")) {
    config_.training.gradient_accumulation_steps = 0;
  }
  if (completeness_ == Completeness::kMayLackTheModel && file_was_read_) drop_keys_without_effect();
  share_values();
  if (file_was_read_) {  // otherwise every required key would be missing
    check_defaults();
    check_conflicts();
  }
  report_.throw_if_any();
  return config_;
}

void Loader::share_values() {
  config_.optimizer.fused = config_.model.fused_kernels = config_.training.fused_kernels;
  config_.model.matmul = config_.training.matmul;
  config_.data.preference = rows_of_preferences(config_);
  config_.data.teacher = stored_teacher_of(config_);
  if (config_.training.logits_mib > 0) config_.model.logits_mib = config_.training.logits_mib;
  for (const Key& key : all_keys()) {
    if (std::holds_alternative<PluginField>(key.field)) set_value(key, config_, value_of(key, config_));
  }
  for (util::PluginValues* values : {&config_.model.plugin_values, &config_.data.plugin_values,
                                     &config_.optimizer.plugin_values, &config_.lr_scheduler.plugin_values}) {
    *values = config_.plugin_values;
  }
}

std::string Loader::default_origin(const Key& key) const {
  if (!key.follows.empty()) return "as " + key.follows;
  if (!key.default_of.empty()) {
    Config copy = config_;
    return "default of " + std::get<std::string>(value_of(*find_key(key.section, key.default_of), copy));
  }
  const TrainingOptions& training = config_.training;
  const bool is_open =
      key.full_name() == "training.gradient_accumulation_steps" && training.gradient_accumulation_steps == 0;
  return is_open ? "as global_batch_size" : "default";
}

std::map<std::string, std::string> Loader::origins() const {
  std::map<std::string, std::string> texts;
  for (const Key& key : all_keys()) {
    std::string& text = texts[key.full_name()];
    const auto found = given_.find(key.full_name());
    if (const auto stored = stored_.find(key.full_name()); stored != stored_.end()) {
      text = stored->second;
    } else if (found == given_.end()) {
      text = default_origin(key);
    } else {
      text = found->second.source->where(found->second.region);
    }
  }
  return texts;
}

}  // namespace fsdp::config
