#pragma once

// A file mapped read-only. The descriptor stays open, so that the size can be checked again: access to a page
// that a truncation has removed ends the process (lost_pages.h). Thread-safe.

#include <cstdint>
#include <optional>
#include <string>

#include "data/tokens/lost_pages.h"

namespace fsdp::data {

class MappedFile {
 public:
  /// Opens and maps the file, or the copy of an object if the path is remote. `kind` names it in messages
  /// ("token file"). Throws Error(kData) if it is missing, unreadable or not a regular file, or cannot be
  /// mapped. An empty file has no data.
  MappedFile(std::string kind, const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const char* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  /// Current size of the file, which may have changed since it was opened.
  int64_t current_size_bytes() const;

  /// Removes the pages of these bytes from this process's resident memory. Only a hint: failure is ignored.
  /// Pages shared with other bytes are reloaded on access.
  void release(int64_t begin, int64_t bytes) const;

  /// Throws Error(kData) with the message "the token file PATH FOUND; REMEDY".
  [[noreturn]] void refuse(const std::string& found, const std::string& remedy) const;

 private:
  void map();

  std::string kind_, path_;
  int fd_ = -1;
  const char* data_ = nullptr;
  int64_t size_bytes_ = 0;
  std::optional<MappedRange> range_;
};

}  // namespace fsdp::data
