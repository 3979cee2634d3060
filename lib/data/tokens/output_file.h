#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>

namespace fsdp::data {

/// A file that appears under its name only when it is complete and on the disk. If it is destroyed before
/// commit(), it leaves nothing behind, and an older file of that name stays. Temporary files for the same
/// name that killed processes have left are removed. Not thread-safe. Throws Error(kIo) for all failures.
class OutputFile {
 public:
  /// Creates the folder of `path` if it does not exist, and a temporary file in it.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(const void* data, int64_t bytes);
  /// Replaces bytes that were appended before.
  void overwrite(int64_t offset, const void* data, int64_t bytes);
  /// Copies bytes that were appended before.
  void read_back(int64_t offset, void* data, int64_t bytes);

  /// Flushes the temporary file to the disk. Requires: no append() follows.
  void finish();
  /// Gives the finished file its name.
  void commit();

 private:
  void remove_abandoned() const;
  [[noreturn]] void fail_with_errno(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::FILE* file_ = nullptr;  ///< null after finish()
  int lock_ = -1;              ///< descriptor whose lock on the temporary file shows that the file is in use
  bool committed_ = false;
};

}  // namespace fsdp::data
