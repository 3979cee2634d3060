#pragma once

// Reads the configuration of a run, and loads the plug-ins that it names.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "setup/config/config.h"

namespace fsdp::config {

/// The defaults, overridden by model.preset, what `file` includes (setup/config/include.h), `file`, and
/// `overrides` in this order (of two overrides of a key the later one counts). Keys of [model] that none of
/// these gives are taken from the description beside the weights in model.init_from, if there is one; given
/// keys that weights determine must agree with it (setup/config/model_description.h).
///
/// An override is `section.key=value` with the value in TOML; strings need no quotes: run.name=trial and
/// run.name="trial" mean the same. Paths are relative to the working directory. optimizer.fused,
/// model.fused_kernels, model.logits_mib and model.matmul follow [training].
///
/// A given key whose condition in the table (Key::matters) does not hold is wrong. If it was given before a
/// key that it depends on (in the file, and that one by an override), it gets its default, with a warning.
/// Default values are fine anywhere, so that a whole config, as --print-config prints it, can be changed.
///
/// Throws one util::Error(kUsage) that lists everything wrong in the file and the overrides, each with its
/// place; Error(kCheckpoint) for weights of an unsupported model, if nothing else is wrong. Does not include
/// check_world() (setup/config/checks.h), which needs the world size.
Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// A configuration, and the origin of each value by the key's full name: "config.toml:7", "command line", or
/// for keys that were not given "default", "as num_attention_heads" (follows another key) or "default of sgd"
/// (another key determines the default).
struct TracedConfig {
  Config config;
  std::map<std::string, std::string> origins;
  std::vector<std::string> warnings;  ///< a sentence for each given key that is ignored
};

/// Does the same as load_config(), returns the origins too, and does not log the warnings.
TracedConfig trace_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// Reads config.toml of a run, which has every key, so that the weights in model.init_from, which may be gone
/// or changed, are not read. Loads no plug-ins: throws for those that are not loaded.
Config load_resolved_config(const std::filesystem::path& file);

/// Does the same as load_config() with a text; `name` replaces the file's name in messages.
Config parse_config(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides = {});

/// Source of a list of plug-ins: a configuration that the user gave, or a file beside checkpoints, which is
/// not trusted, so that nothing is loaded for it.
enum class PluginsNamedBy { kUser, kStoredFile };

/// Loads, once each, the plug-ins that the user asked for and, if `by` is kUser, those in `named`
/// (run.plugins); returns the new value of run.plugins. Throws Error(kUsage), also for plug-ins that are
/// named and neither loaded nor to be loaded.
using PluginLoader =
    std::function<std::vector<std::string>(const std::vector<std::string>& named, PluginsNamedBy by)>;

/// Sets the loader (setup/plugin/load.h has one), which is called before the keys of any configuration are
/// checked, since plug-ins add keys. Without a loader, configurations that name plug-ins are refused. Not
/// thread-safe.
void set_plugin_loader(PluginLoader loader);

std::vector<std::string> load_plugins(const std::vector<std::string>& named, PluginsNamedBy by);

}  // namespace fsdp::config
