#pragma once

// Files whose reads and writes either complete or throw an Error that names the path.

#include <cstdint>
#include <filesystem>
#include <utility>

#include "base/util/descriptor.h"

namespace fsdp::util {

/// An open file. Move-only. Not thread-safe.
class RawFile {
 public:
  /// Opens for reading. Throws Error(kCheckpoint) if the path does not exist or is not a regular file, kIo
  /// for other failures.
  static RawFile open(const std::filesystem::path& path);

  /// Creates an empty file for writing and locks it until it is closed. Reuses a file left by a killed
  /// writer. Throws Error(kCheckpoint) if its writer still runs.
  static RawFile create_locked(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  int64_t size_bytes() const;

  /// Fills `out` with the bytes from `offset` on. Throws Error(kCheckpoint) if the file ends first.
  void read_at(int64_t offset, void* out, int64_t bytes) const;

  /// Appends the bytes.
  void write(const void* data, int64_t bytes);

  /// Flushes written bytes to the disk.
  void sync();

 private:
  RawFile(std::filesystem::path path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::filesystem::path path_;
  Descriptor fd_;
};

/// Opens a file that the caller will lock, and creates it if it does not exist. Throws Error(kIo) for a
/// symbolic link and for anything else that is not a regular file.
Descriptor open_lock_file(const std::filesystem::path& path);

/// Whether the path, without following links, still leads to the open file or folder.
bool still_has_its_name(const Descriptor& opened, const std::filesystem::path& path);

}  // namespace fsdp::util
