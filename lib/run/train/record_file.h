#pragma once

// RecordFile: a file of a run that grows by whole records, which are lines, or records of TensorBoard.

#include <filesystem>
#include <fstream>
#include <string_view>

namespace fsdp::train {

/// Not thread-safe.
class RecordFile {
 public:
  /// Opens the file to append to it; creates it if there is none. Throws Error(kIo).
  explicit RecordFile(const std::filesystem::path& path);

  /// Appends a record. Leaves out as a whole a record that cannot be written because the disk is full, and
  /// warns at the first of several such records, because the run is worth more than its log.
  void append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::uintmax_t whole_bytes_ = 0;  ///< size of the file at the end of the last whole record
  bool failing_ = false;
};

/// Renames a file or folder of an older run: metrics.jsonl to metrics.1.jsonl, or with the next free number.
void put_aside(const std::filesystem::path& path);

}  // namespace fsdp::train
