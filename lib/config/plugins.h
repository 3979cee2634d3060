#pragma once

// How a configuration comes to its plug-ins. Loading shared libraries is the business of plugin/load.h, which a
// program sets here; a program that sets nothing refuses configurations that name any.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/keys.h"

namespace fsdp::config {

/// Who names plug-ins: a configuration that the user gave, or a file beside checkpoints, which may be of
/// anybody, and for whose sake nothing is loaded.
enum class PluginsNamedBy { kUser, kStoredFile };

/// Loads what the user asked for, and what run.plugins names if that is the user's, each once; returns what
/// run.plugins is to say. Throws Error(kUsage), also for a stored file that names what is not loaded.
using PluginLoader =
    std::function<std::vector<std::string>(const std::vector<std::string>& named, PluginsNamedBy by)>;

/// Called by every loading of a configuration before its keys are checked, since plug-ins add keys. Not
/// thread-safe.
void set_plugin_loader(PluginLoader loader);

std::vector<std::string> load_plugins(const std::vector<std::string>& named, PluginsNamedBy by);

/// Loads the plug-ins of such a configuration (load_config()), if it can be read that far; says nothing of
/// what is wrong with it. For --help, which lists their keys.
void try_to_load_plugins(const std::filesystem::path& file, const std::vector<std::string>& overrides);

/// Adds the keys of a plug-in, a section of its own named `section`, to all_keys(), and the names that it has
/// registered to the choices of model.architecture and the like. Pointers into all_keys() become invalid.
/// Throws Error(kUsage) for a section that is there already.
void add_plugin_section(const std::string& section, std::vector<Key> keys);

}  // namespace fsdp::config
