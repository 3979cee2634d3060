#pragma once

// Loads the plug-ins of a program.

#include <string>
#include <vector>

namespace fsdp::plugin {

/// Whether a program loads the plug-ins that the user's configuration names (run.plugins). A program that
/// runs the configuration does; programs that print or check it refuse plug-ins that --plugin does not name.
enum class OfConfigs { kAreLoaded, kAreRefused };

/// Makes the configurations that are loaded from now on load the plug-ins of `given` (--plugin), and their
/// own if `of_configs` allows it (setup/config/load.h). A path is relative to the working directory; a name
/// without a slash that is not there is searched for in the folders of LD_LIBRARY_PATH. Where run.plugins
/// names a file of the same name as one of `given`, the latter is taken.
///
/// Each library's build is compared with this program's before any of its code runs, and it is never
/// unloaded. Loading throws Error(kUsage) for a library that does not exist, is not a plug-in, was built for
/// other versions, or whose names are taken.
void load_with_configs(std::vector<std::string> given, OfConfigs of_configs);

}  // namespace fsdp::plugin
