#pragma once

// Files that appear under their names only when they are complete and on the disk.

#include <cstdint>
#include <cstdio>
#include <filesystem>

namespace fsdp::data {

/// A file that appears under its name only when it is complete and on the disk. Not thread-safe. Destroyed
/// before commit(), it leaves nothing behind and an older file of that name as it was; temporary files for the same name
/// that killed processes have left are removed. Failures are Errors of kind kIo.
class OutputFile {
 public:
  /// Makes the folder of `path` when it does not exist, and a temporary file in it.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(const void* data, int64_t bytes);
  /// Replaces bytes that were appended before.
  void overwrite(int64_t offset, const void* data, int64_t bytes);
  /// Copies bytes that were appended before.
  void read_back(int64_t offset, void* data, int64_t bytes);

  /// Flushes the temporary file to the disk. Nothing may be appended after it.
  void finish();
  /// Gives the finished file its name.
  void commit();

 private:
  void remove_abandoned() const;
  [[noreturn]] void fail_with_errno(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::FILE* file_ = nullptr;  ///< null once finished
  int lock_ = -1;              ///< of the temporary file, which shows others that it is in use
  bool committed_ = false;
};

}  // namespace fsdp::data
