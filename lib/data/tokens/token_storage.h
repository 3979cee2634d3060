#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/objects/object_file.h"
#include "data/tokens/mapped_file.h"

namespace fsdp::data {

/// The bytes of a token file: a mapped file, or an object of a store (base/objects), of which only the blocks
/// that are read are fetched. Thread-safe.
class TokenStorage {
 public:
  /// `path`: of a file, or a remote name. Throws Error(kData) if it cannot be read, kIo if a store fails.
  explicit TokenStorage(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return file_ ? file_->size_bytes() : object_->size_bytes(); }
  /// Current size; that of an object is examined with each block.
  int64_t current_size_bytes() const { return file_ ? file_->current_size_bytes() : object_->size_bytes(); }

  /// Returns the bytes from `offset` on, which may be in `buffer`. They are valid while both objects are.
  const char* view(int64_t offset, int64_t bytes, std::vector<char>& buffer) const;

  /// MappedFile::release() and ObjectFile::will_read(): hints for one of the two.
  void release(int64_t begin, int64_t bytes) const;
  void will_read(int64_t begin, int64_t bytes) const;

  /// Throws Error(kData) with the message "the token file PATH FOUND; REMEDY".
  [[noreturn]] void refuse(const std::string& found, const std::string& remedy) const;

 private:
  std::string path_;
  std::unique_ptr<MappedFile> file_;             ///< null for an object
  std::unique_ptr<objects::ObjectFile> object_;  ///< null for a file
};

/// Returns the path of a companion of a token file, copied from its store if its name is remote; nothing if
/// there is none.
std::optional<std::string> companion_of_tokens(const std::string& path_or_name);

}  // namespace fsdp::data
