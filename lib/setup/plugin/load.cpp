#include "setup/plugin/load.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "setup/config/load.h"
#include "setup/plugin/plugin.h"

namespace fsdp::plugin {
namespace fs = std::filesystem;
namespace {

/// The file that a path or name means.
std::string resolved(const std::string& path) {
  std::vector<fs::path> candidates = {path};
  const char* folders = std::getenv("LD_LIBRARY_PATH");
  if (path.find('/') == std::string::npos && folders != nullptr) {
    std::istringstream text(folders);
    for (std::string folder; std::getline(text, folder, ':');) {
      if (!folder.empty()) candidates.push_back(fs::path(folder) / path);
    }
  }
  std::error_code error;
  for (const fs::path& candidate : candidates) {
    if (fs::is_regular_file(candidate, error)) return fs::canonical(candidate, error).string();
  }
  fail(ErrorKind::kUsage, "expected a plug-in (a shared library); found none at ", path,
       "; correct the path in run.plugins, or name the library by --plugin");
}

/// Reads the description from the file, since loading a library runs its code.
void require_same_build(const std::string& path) {
  const std::string file = util::read_file(path);
  constexpr std::string_view marker = FSDP_PLUGIN_MARKER;
  const size_t at = file.find(marker);
  if (at == std::string::npos || file.size() - at < sizeof(Description)) {
    fail(ErrorKind::kUsage, "expected a plug-in, a shared library with FSDP_PLUGIN (<fsdp/plugin.h>); found ",
         "another file at ", path, "; name the library that the plug-in's build has made");
  }
  const char* text = file.data() + at + offsetof(Description, built_for);
  const std::string found(text, strnlen(text, sizeof(Description::built_for)));
  if (found == FSDP_PLUGIN_BUILT_FOR) return;
  fail(ErrorKind::kUsage, "expected a plug-in that was built for ", FSDP_PLUGIN_BUILT_FOR, "; found one for ",
       util::printable(found), " at ", path, "; build it again with the package of this program");
}

/// The paths of all loaded plug-ins.
std::vector<std::string>& loaded_files() {
  static std::vector<std::string> files;
  return files;
}

void load(const std::string& path) {
  const std::string file = resolved(path);
  std::vector<std::string>& files = loaded_files();
  if (std::find(files.begin(), files.end(), file) != files.end()) return;
  require_same_build(file);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    fail(ErrorKind::kUsage, "expected a plug-in that can be loaded; found ", path,
         ", which the system refuses: ", why != nullptr ? why : "nothing",
         "; correct the path, or build the plug-in again");
  }
  const auto* description = static_cast<const Description*>(dlsym(library, "fsdp_plugin_description"));
  if (description == nullptr) {
    fail(ErrorKind::kUsage, "expected a plug-in, a shared library with FSDP_PLUGIN (<fsdp/plugin.h>); found ",
         path, ", which has none");
  }
  files.push_back(file);
  try {
    Registrar registrar(description->name);
    description->add_to(registrar);
    registrar.finish();
  } catch (const util::Error& error) {
    fail(error.kind(), "the plug-in ", description->name, " (", path, "): ", error.what());
  }
}

/// The one of `paths` with the file name of `path`.
auto of_same_name(const std::vector<std::string>& paths, const std::string& path) {
  return std::find_if(paths.begin(), paths.end(), [&](const std::string& other) {
    return fs::path(other).filename() == fs::path(path).filename();
  });
}

std::vector<std::string> joined(const std::vector<std::string>& named, const std::vector<std::string>& given,
                                config::PluginsNamedBy by) {
  std::vector<std::string> all;
  for (const std::string& path : named) {
    const auto found = of_same_name(given, path);
    const std::vector<std::string>& files = loaded_files();
    if (found == given.end() && by == config::PluginsNamedBy::kStoredFile &&
        of_same_name(files, path) == files.end()) {
      fail(ErrorKind::kUsage, "run.plugins lists ", path,
           ", which is not loaded; if you trust that library, add --plugin ", util::shell_word(path));
    }
    all.push_back(found == given.end() ? path : *found);
  }
  for (const std::string& path : given) {
    if (std::find(all.begin(), all.end(), path) == all.end()) all.push_back(path);
  }
  return all;
}

}  // namespace

void load_with_configs(std::vector<std::string> given, OfConfigs of_configs) {
  config::set_plugin_loader([given = std::move(given), of_configs](const std::vector<std::string>& named,
                                                                   config::PluginsNamedBy by) {
    if (of_configs == OfConfigs::kAreRefused) by = config::PluginsNamedBy::kStoredFile;
    std::vector<std::string> all = joined(named, given, by);
    for (const std::string& path : by == config::PluginsNamedBy::kUser ? all : given) load(path);
    return all;
  });
}

}  // namespace fsdp::plugin
