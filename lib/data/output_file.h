#pragma once

// A file that appears under its name only when it is complete and on the disk.

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::data {

/// Not thread-safe. Destroyed before commit(), it leaves nothing behind and an older file of that name as it
/// was. Failures are Errors of kind kIo.
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
  void flush();
  void write_all(const char* data, int64_t bytes, int64_t offset);
  [[noreturn]] void fail_with_errno(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  std::string buffer_;
  int64_t written_bytes_ = 0;
  bool committed_ = false;
};

}  // namespace fsdp::data
