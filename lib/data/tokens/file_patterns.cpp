#include "data/tokens/file_patterns.h"

#include <glob.h>

#include <filesystem>

#include "base/util/error.h"

namespace fsdp::data {
namespace fs = std::filesystem;

std::vector<std::string> expand_patterns(const std::vector<std::string>& texts) {
  std::vector<std::string> files;
  for (const std::string& text : texts) {
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
