#include "config/load.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/described_model.h"
#include "config/checks.h"
#include "config/convert.h"
#include "config/include.h"
#include "config/keys.h"
#include "config/model_description.h"
#include "config/parse.h"
#include "config/presets.h"
#include "config/source.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"
#include "util/text.h"

namespace fsdp::config {
namespace {

using util::concat;

std::string trimmed(const std::string& text) {
  size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The place of an entry's key if it is on the line of its value, else of the value.
Region key_region(const Source& source, const Entry& entry) {
  Region region = entry.value.region;
  size_t at = source.line(region.line).substr(0, region.column).rfind(entry.name);
  if (!entry.name.empty() && at != std::string_view::npos) {
    region.column = at;
    region.length = entry.name.size();
  }
  return region;
}

/// Why an override cannot be parsed.
std::optional<std::string> override_defect(const Source& source) {
  if (source.line_count() != 1) return "expected section.key=value on one line; found a line break";
  if (auto defect = byte_defect(source)) return defect->message;
  return std::nullopt;
}

/// Whether the model may have to be completed from the description beside the weights of model.init_from.
enum class Completeness { kMayLackTheModel, kIsWhole };

/// One loading of a configuration: the values and problems so far.
class Loader {
 public:
  Loader(Source file, Completeness completeness) : completeness_(completeness) { open(std::move(file)); }
  /// First, because the keys of plug-ins have to be known.
  void load_plugins(const std::vector<std::string>& overrides);
  /// The file, after those that it includes.
  void read_files();
  void read_overrides(const std::vector<std::string>& texts);
  /// Completes and checks the configuration; throws if anything was wrong.
  Config finish();
  std::map<std::string, std::string> origins() const;
  /// Of given keys that are ignored.
  std::vector<std::string> take_warnings() { return std::move(warnings_); }

 private:
  struct Given {
    const Source* source = nullptr;
    size_t layer = 0;  ///< of the source; a value in a later layer replaces one in an earlier
    Region region;
    bool is_wrong = false;  ///< reported already; other checks ignore the key
  };

  void open(Source file);
  /// Errors without a place name it.
  const Source& file() const { return files_.back(); }
  void read_file(const Source& source);
  void read_override(const std::string& text);
  void apply(const Key& key, const Literal& literal, const Source& source);
  void refuse_unknown(const Source& source, const Entry& entry);
  void apply_preset();
  void apply_stored_model();
  void fill_model(const nn::ModelOptions& stored, const std::string& where);
  void refuse_differences(const nn::ModelOptions& stored, const std::string& where);
  /// Copies values that several components read into each one's options.
  void share_values();
  /// Whether the key was given a valid value.
  bool has(const Key& key) const;
  /// Keys that have no effect get their default.
  void drop_keys_without_effect();
  void report_without_effect(const Key& key, Config& config);
  void check_defaults();
  std::string default_origin(const Key& key) const;
  void check_conflicts();

  Completeness completeness_;
  Config config_;
  Report report_;
  std::map<std::string, Given> given_;         ///< by full name
  std::map<std::string, std::string> stored_;  ///< keys set from a description of weights: its file
  std::deque<Source> files_;                   ///< with_included()
  std::deque<Source> override_sources_;
  std::optional<Source> preset_source_;
  size_t layer_ = 0;                             ///< of the sources that are read
  std::vector<std::string> warnings_, dropped_;  ///< sentences about, and names of, keys that are ignored
  std::vector<std::string> plugins_;
  bool may_include_ = false;
  bool file_was_read_ = true;
};

/// Where a file names plug-ins.
struct PluginPlace {
  const Source* source = nullptr;
  Region region;
};

std::vector<std::string> named_plugins(const std::deque<Source>& files,
                                       const std::vector<std::string>& overrides,
                                       std::optional<PluginPlace>* place = nullptr) {
  std::vector<std::string> named;
  const auto read = [&](const Source& from, bool is_file) {
    try {
      for (const Entry& entry : parse_toml(from)) {
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

/// Only a file of the user's includes others: one beside checkpoints may come from anybody, as may a text from
/// a manifest, and both have every key themselves.
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
  std::vector<Entry> entries;
  try {
    entries = parse_toml(source);
  } catch (const SyntaxError& error) {
    report_.add(source, error.region, error.message);
    file_was_read_ = false;
    return;
  }
  ++layer_;
  for (const Entry& entry : entries) {
    const Key* key = find_key(entry.section, entry.name);
    if (key) {
      apply(*key, entry.value, source);
    } else if (!may_include_ || !entry.section.empty() || entry.name != kIncludeKey) {
      refuse_unknown(source, entry);
    }
  }
}

void Loader::refuse_unknown(const Source& source, const Entry& entry) {
  const std::vector<std::string> sections = section_names();
  bool known_section = std::find(sections.begin(), sections.end(), entry.section) != sections.end();
  if (entry.section.empty()) {
    report_.add(source, key_region(source, entry), top_level_text(entry.name));
  } else if (entry.name.empty()) {
    if (!known_section) report_.add(source, entry.value.region, unknown_section_text(entry.section));
  } else if (known_section) {  // of an unknown section only the section is reported
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
    for (const Entry& entry : parse_toml(source)) {
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
  for (const Entry& entry : parse_toml(source)) {
    const Key* key = find_key(entry.section, entry.name);
    if (!key || given_.contains(key->full_name())) continue;  // no key: the section's own entry
    apply(*key, entry.value, source);
  }
}

bool Loader::has(const Key& key) const {
  const auto found = given_.find(key.full_name());
  return found != given_.end() && !found->second.is_wrong;
}

/// Completes [model] from the description beside the weights, if there is one; given keys must agree.
void Loader::apply_stored_model() {
  const std::string& path = config_.model.init_from;
  if (path.empty() || !file_was_read_ || completeness_ == Completeness::kIsWhole) return;
  const Given& place = given_.at("model.init_from");
  try {
    if (!util::is_there(path)) {
      // Reported when the weights are opened, unless the model is unknown without them.
      const std::vector<Key>& keys = all_keys();
      const bool any = std::any_of(keys.begin(), keys.end(), [&](const Key& key) {
        return is_determined_by_weights(key.full_name()) && has(key);
      });
      if (any) return;
      util::fail(util::ErrorKind::kUsage, "model.init_from: there are no weights at ", path,
                 ", which must define the model because [model] does not; correct the path",
                 util::hub_remedy(path));
    }
    const auto stored = checkpoint::described_model(path);
    if (!stored) return;
    const nn::ModelOptions options = model_of(*stored);
    fill_model(options, stored->where);
    refuse_differences(options, stored->where);
  } catch (const util::Error& error) {
    // An error of another kind keeps its exit code if nothing else is wrong.
    if (error.kind() != util::ErrorKind::kUsage && report_.empty()) throw;
    report_.add(*place.source, place.region, error.what());
  }
}

void Loader::fill_model(const nn::ModelOptions& stored, const std::string& where) {
  Config described;
  described.model = stored;
  described.plugin_values = stored.plugin_values;
  for (const Key& key : all_keys()) {
    const bool of_model = key.section == "model" || is_determined_by_weights(key.full_name());
    if (!of_model || has(key)) continue;
    if (key.name == "preset" || key.name.starts_with("init_")) continue;
    set_value(key, config_, value_of(key, described));
    stored_[key.full_name()] = where;
  }
}

void Loader::refuse_differences(const nn::ModelOptions& stored, const std::string& where) {
  share_values();
  const std::vector<ModelDifference> differences = compare_models(config_.model, stored);
  for (const ModelDifference& difference : differences) {
    const auto found = given_.find(difference.key);
    FSDP_CHECK(found != given_.end(), difference.key);
    const bool last = &difference == &differences.back();  // the remedy is the same for all
    report_.add(*found->second.source, found->second.region,
                util::concat(difference_text(difference, where), last ? "; " : "; leave the key out",
                             last ? kDifferenceRemedy : ""));
    found->second.is_wrong = true;
  }
}

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

/// What stands together and contradicts itself is a mistake. Where a later layer has changed what the key
/// depends on, as optimizer.name=sgd on the command line does for betas in the file, there is only a warning.
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

TracedConfig load(Source source, const std::vector<std::string>& overrides,
                  Completeness completeness = Completeness::kMayLackTheModel) {
  Loader loader(std::move(source), completeness);
  loader.load_plugins(overrides);
  loader.read_files();
  loader.read_overrides(overrides);
  Config config = loader.finish();
  return {config, loader.origins(), loader.take_warnings()};
}

Config with_warnings_logged(const TracedConfig& traced) {
  for (const std::string& warning : traced.warnings) util::log_warning(warning);
  return traced.config;
}

PluginLoader& plugin_loader() {
  static PluginLoader loader;
  return loader;
}

}  // namespace

void set_plugin_loader(PluginLoader loader) { plugin_loader() = std::move(loader); }

std::vector<std::string> load_plugins(const std::vector<std::string>& named, PluginsNamedBy by) {
  if (plugin_loader()) return plugin_loader()(named, by);
  if (named.empty()) return {};
  util::fail(util::ErrorKind::kUsage,
             "run.plugins must be empty, because this program loads no plug-ins, but is ",
             util::join(named, ", "), "; leave it out");
}

void try_to_load_plugins(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  try {
    Report ignored;
    const std::deque<Source> files =
        file.empty() ? std::deque<Source>() : with_included(Source::from_file(file), ignored);
    load_plugins(named_plugins(files, overrides), PluginsNamedBy::kUser);
  } catch (const util::Error&) {  // reported when the configuration is loaded
  }
}

Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return with_warnings_logged(trace_config(file, overrides));
}

TracedConfig trace_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return load(Source::from_file(file), overrides);
}

Config load_resolved_config(const std::filesystem::path& file) {
  return load(Source::from_file(file), {}, Completeness::kIsWhole).config;
}

Config parse_config(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides) {
  return with_warnings_logged(load(Source::from_text(name, text), overrides));
}

}  // namespace fsdp::config
