#pragma once

#include <filesystem>

#include "util/error.h"

namespace fsdp::util {

/// Whether something is at the path. Throws Error(kIo) where that cannot be told, such as in a folder that
/// this user may not enter: what may not be seen is not the same as what is not there.
inline bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::none) {
    fail(ErrorKind::kIo, "cannot look at ", path.string(), ": ", error.message());
  }
  return type != std::filesystem::file_type::not_found;
}

}  // namespace fsdp::util
