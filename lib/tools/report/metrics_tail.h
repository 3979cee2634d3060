#pragma once

// Reads metrics.jsonl of a run under way while the file grows.

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>

namespace fsdp::report {

class MetricsTail {
 public:
  explicit MetricsTail(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls `line` for each line that was completed since the last call of poll(). If the file was replaced or
  /// has shrunk, for example because a run resumed, calls `restart` and then `line` for all lines again.
  /// False while there is no file.
  bool poll(const std::function<void()>& restart, const std::function<void(const std::string&)>& line);

 private:
  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t read_bytes_ = 0;
  std::string unfinished_;  ///< the incomplete last line
};

}  // namespace fsdp::report
