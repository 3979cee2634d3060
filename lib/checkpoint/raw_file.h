#pragma once

// A file whose reads and writes are whole or an Error that names the path. Not thread-safe; move-only.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace fsdp::checkpoint {

class RawFile {
 public:
  /// Opens for reading. kCheckpoint when nothing of that name is there or it is a folder, kIo for other
  /// failures.
  static RawFile open(const std::filesystem::path& path);

  /// Creates an empty file for writing and holds a lock on it until it is closed. The file may be there from
  /// a writer that was killed; a writer that still runs is an error of kind kCheckpoint.
  static RawFile create_locked(const std::filesystem::path& path);

  RawFile(RawFile&& other) noexcept;
  RawFile& operator=(RawFile&& other) = delete;
  ~RawFile();

  const std::filesystem::path& path() const { return path_; }
  int64_t size_bytes() const;

  /// Fills `out` from `offset`; kCheckpoint when the file ends first.
  void read_at(int64_t offset, void* out, int64_t bytes) const;

  /// Appends.
  void write(const void* data, int64_t bytes);

  /// Flushes what was written to the disk.
  void sync();

 private:
  RawFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::filesystem::path path_;
  int fd_;
};

/// Size of a file in bytes and its XXH3 hash of 64 bits as 16 lower-case hexadecimal digits.
struct FileDigest {
  int64_t bytes = 0;
  std::string xxh3_64;
  bool operator==(const FileDigest&) const = default;
};

/// Streams the file through the hash; memory is bounded. `on_bytes` is told how many bytes were hashed since
/// its last call.
FileDigest digest_file(const std::filesystem::path& path, const std::function<void(int64_t)>& on_bytes = {});

/// The same hash of a text.
std::string xxh3_64_of(std::string_view text);

}  // namespace fsdp::checkpoint
