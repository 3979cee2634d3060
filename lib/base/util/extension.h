#pragma once

// File names, which are compared without regard to case.

#include <filesystem>
#include <string>

namespace fsdp::util {

/// The extension of a path with its dot, in small letters: "a/B.JSONL" -> ".jsonl". "" when it has none.
inline std::string extension_of(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return extension;
}

}  // namespace fsdp::util
