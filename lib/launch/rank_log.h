#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "launch/descriptor.h"

namespace fsdp::launch {

/// The file that keeps what one worker writes, stdout and stderr in the order in which they were read,
/// without prefixes and without transient text. A file that is there already is continued.
/// When it cannot be written any more (a full disk), that is said once and the worker goes on without it.
class RankLog {
 public:
  /// Throws Error(kIo) when the file cannot be opened or is not a regular file.
  explicit RankLog(std::filesystem::path path);

  void line(std::string_view text);
  /// Writes the lines that have gathered.
  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::string buffer_;
};

}  // namespace fsdp::launch
