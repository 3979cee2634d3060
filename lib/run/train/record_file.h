#pragma once

// A file of a run that grows by whole records: lines, or records of TensorBoard.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace fsdp::train {

/// Not thread-safe.
class RecordFile {
 public:
  /// Appends to the file; creates it if there is none. Throws Error(kIo).
  explicit RecordFile(const std::filesystem::path& path);

  /// A record that cannot be written, because the disk is full, is left out as a whole; the first of several
  /// such records brings a warning. The run is worth more than its log.
  void append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::uintmax_t whole_bytes_ = 0;  ///< up to the end of the last whole record
  bool failing_ = false;
};

/// Renames a file or folder of an older run: metrics.jsonl to metrics.1.jsonl, or with the next free number.
void put_aside(const std::filesystem::path& path);

}  // namespace fsdp::train
