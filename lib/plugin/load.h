#pragma once

// Loads the plug-ins of a program.

#include <string>
#include <vector>

namespace fsdp::plugin {

/// From now on, loading a configuration also loads its plug-ins (config/plugins.h) and those of `given`
/// (--plugin). A path is relative to the working directory; a name without a slash that does not exist there
/// is searched for in the folders of LD_LIBRARY_PATH. A file of `given` takes precedence over one of the same
/// name in run.plugins.
///
/// Each library's build is compared with this program's before any of its code runs, and it is never
/// unloaded. Loading throws Error(kUsage) for a library that does not exist, is not a plug-in, was built for
/// other versions, or whose names are taken.
void load_with_configs(std::vector<std::string> given);

}  // namespace fsdp::plugin
