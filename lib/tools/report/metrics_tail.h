#pragma once

// metrics.jsonl of a run under way, read as it grows.

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>

namespace fsdp::report {

class MetricsTail {
 public:
  explicit MetricsTail(std::filesystem::path path) : path_(std::move(path)) {}

  /// Passes the lines that have been completed since the last call to `line`; an incomplete line waits until
  /// it is complete. Where the file was replaced or has shrunk, as when a run resumes, `restart` is called
  /// and all lines follow again. False while there is no file.
  bool poll(const std::function<void()>& restart, const std::function<void(const std::string&)>& line);

 private:
  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t read_bytes_ = 0;
  std::string unfinished_;  ///< line
};

}  // namespace fsdp::report
