#pragma once

// Extensions of file names, compared without regard to case.

#include <filesystem>
#include <string>

namespace fsdp::util {

/// Returns the extension of a path with its dot, in lower case: "a/B.JSONL" -> ".jsonl". "" if there is none.
inline std::string extension_of(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return extension;
}

}  // namespace fsdp::util
