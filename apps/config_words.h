#pragma once

// The keys of the config on a command line.

#include <string>
#include <vector>

#include "base/cli/page.h"

namespace fsdp::apps {

/// Returns section.key of every key, with its meaning, its default, and the values to choose from.
std::vector<cli::Word> config_words();

/// Returns the part of --help about the keys of the config, including keys of the plug-ins that --plugin
/// names.
std::string keys_for_help(const std::vector<std::string>& plugins);

}  // namespace fsdp::apps
