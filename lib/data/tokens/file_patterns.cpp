#include "data/tokens/file_patterns.h"

#include <fnmatch.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/error.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

/// Returns the objects that match a remote name with *, ? or [ in it, sorted; otherwise the name itself.
std::vector<std::string> remote_files(const std::string& name) {
  const size_t special = name.find_first_of("*?[");
  if (special == std::string::npos || objects::scheme_of(name).starts_with("http")) return {name};
  const std::string folder = objects::folder_of(name.substr(0, special) + "x");
  std::vector<std::string> found;
  for (const objects::ListedObject& object : objects::object_store(folder).list(folder)) {
    std::string full = objects::joined(folder, object.name);
    if (::fnmatch(name.c_str(), full.c_str(), FNM_PATHNAME) == 0) found.push_back(std::move(full));
  }
  if (found.empty()) {
    fail(ErrorKind::kData, "no object matches the pattern ", name,
         "; correct it or list the objects by name");
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::vector<std::string> expand_patterns(const std::vector<std::string>& texts) {
  std::vector<std::string> files;
  for (const std::string& text : texts) {
    if (objects::is_remote(text)) {
      for (std::string& name : remote_files(text)) files.push_back(std::move(name));
      continue;
    }
    std::error_code error;
    bool pattern = text.find_first_of("*?[") != std::string::npos && !fs::exists(text, error);
    if (!pattern) {
      files.push_back(text);
      continue;
    }
    glob_t found{};
    int code = ::glob(text.c_str(), 0, nullptr, &found);
    for (size_t i = 0; code == 0 && i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (code != 0) {
      fail(ErrorKind::kData, "no file matches the pattern ", text, "; correct it or list the files by name");
    }
  }
  return files;
}

}  // namespace fsdp::data
