#pragma once

// One loading of a configuration: files, overrides, presets, descriptions of weights, and the checks of all.

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "setup/config/config.h"
#include "setup/config/keys.h"
#include "setup/config/parse.h"
#include "setup/config/source.h"

namespace fsdp::config {

/// Whether the model may have to be completed from the description beside the weights of model.init_from.
enum class Completeness { kMayLackTheModel, kIsWhole };

/// The values and problems so far.
class Loader {
 public:
  Loader(Source file, Completeness completeness) : completeness_(completeness) { open(std::move(file)); }
  /// Called first, because the keys of plug-ins have to be known.
  void load_plugins(const std::vector<std::string>& overrides);
  /// Reads the file after those that it includes.
  void read_files();
  void read_overrides(const std::vector<std::string>& texts);
  /// Completes and checks the configuration; throws if anything was wrong.
  Config finish();
  std::map<std::string, std::string> origins() const;
  /// Returns the warnings about given keys that are ignored.
  std::vector<std::string> take_warnings() { return std::move(warnings_); }

 private:
  struct Given {
    const Source* source = nullptr;
    size_t layer = 0;  ///< layer of the source; a later layer replaces values of an earlier one
    Region region;
    bool is_wrong = false;  ///< reported already; other checks ignore the key
  };

  void open(Source file);
  /// The file that errors without a place name.
  const Source& file() const { return files_.back(); }
  void read_file(const Source& source);
  void read_override(const std::string& text);
  void apply(const Key& key, const Literal& literal, const Source& source);
  /// Reports an unknown section as a whole, unless it is one of `by_key`, whose keys are reported.
  void refuse_unknown(const Source& source, const TomlEntry& entry, const std::set<std::string>& by_key);
  void apply_preset();
  void apply_stored_model();
  void fill_model(const nn::ModelOptions& stored, const std::string& where);
  void refuse_differences(const nn::ModelOptions& stored, const std::string& where);
  /// Copies values that several components read into each one's options.
  void share_values();
  /// Whether the key was given a valid value.
  bool has(const Key& key) const;
  /// Gives keys that have no effect their default.
  void drop_keys_without_effect();
  void report_without_effect(const Key& key, Config& config);
  void check_defaults();
  std::string default_origin(const Key& key) const;
  void check_conflicts();

  Completeness completeness_;
  Config config_;
  Report report_;
  std::map<std::string, Given> given_;         ///< keys by their full names
  std::map<std::string, std::string> stored_;  ///< keys set from a description of weights: its file
  std::deque<Source> files_;                   ///< files of with_included()
  std::deque<Source> override_sources_;
  std::optional<Source> preset_source_;
  size_t layer_ = 0;                             ///< layer of the sources that are read
  std::vector<std::string> warnings_, dropped_;  ///< sentences about, and names of, keys that are ignored
  std::vector<std::string> plugins_;
  bool may_include_ = false;
  bool file_was_read_ = true;
};

/// Place in a file that names plug-ins.
struct PluginPlace {
  const Source* source = nullptr;
  Region region;
};

/// The last value of run.plugins; nothing for a text that cannot be read.
std::vector<std::string> named_plugins(const std::deque<Source>& files,
                                       const std::vector<std::string>& overrides,
                                       std::optional<PluginPlace>* place = nullptr);

}  // namespace fsdp::config
