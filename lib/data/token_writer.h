#pragma once

// Writes a token file that appears under its name only when it is complete and on the disk.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace fsdp::data {

/// Not thread-safe. Destroyed before commit(), it leaves nothing behind and an older file of that name as it
/// was. Failures are Errors of kind kIo.
class TokenWriter {
 public:
  /// Makes the folder of `path` when it does not exist, and a temporary file in it.
  explicit TokenWriter(const std::filesystem::path& path);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Ids must be below kMaxVocabSize.
  void append(const std::vector<int64_t>& ids);
  int64_t size() const { return size_; }

  /// Flushes the temporary file to the disk. No append() after it.
  void finish();
  /// Gives the finished file its name.
  void commit();

 private:
  [[noreturn]] void fail_with_errno(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  int64_t size_ = 0;
  bool committed_ = false;
};

}  // namespace fsdp::data
