#pragma once

// The keys of the config as words of a command line.

#include <vector>

#include "cli/page.h"

namespace fsdp::apps {

/// section.key of every key, with its meaning, its default, and the values to choose from.
std::vector<cli::Word> config_words();

}  // namespace fsdp::apps
