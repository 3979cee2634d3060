#pragma once

// Reads the configuration of a run.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::config {

/// The defaults, changed by model.preset, changed by `file`, changed by `overrides` in their order (of two
/// for the same key the later one counts). Keys of [model] that none of these gives are those of the model
/// whose weights model.init_from names, where config.json or a manifest says what it is; those that are given
/// and that weights determine must agree with it (config/model_comparison.h).
///
/// An override is `section.key=value` with the value in TOML; for a key that holds a string the quotes may be
/// left out, so run.name=trial and run.name="trial" mean the same. Relative paths inside stay relative to the
/// working directory. optimizer.fused, model.fused_kernels and model.matmul follow [training].
///
/// Throws one util::Error(kUsage) that lists everything that is wrong, in the file and in the overrides, each
/// with its place; Error(kCheckpoint) for weights of a model that this version cannot compute, if that is all
/// that is wrong. check_world() (config/checks.h) is for later, when the world size is known.
Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// A configuration, and where each value comes from, by the key's full name: "default", "config.toml:7",
/// "command line"; of keys that were not given, "as num_attention_heads" for one that follows another,
/// "default of sgd" for one whose default another decides.
struct TracedConfig {
  Config config;
  std::map<std::string, std::string> origins;
};

/// load_config() with the origins.
TracedConfig trace_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// config.toml of a run, which has every key: what model.init_from names may be gone or changed by now, and
/// is not looked at. Loads no plug-ins: throws for those that are not loaded.
Config load_resolved_config(const std::filesystem::path& file);

/// load_config() from text that is no file of its own; `name` stands for the file's name in messages.
Config parse_config(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides = {});

}  // namespace fsdp::config
