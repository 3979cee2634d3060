#pragma once

// Files whose reads and writes are complete or throw an Error that names the path: raw bytes, hashes, and
// JSON within limits (base/util/json.h).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/util/json.h"

namespace fsdp::checkpoint {

/// Not thread-safe; move-only.
class RawFile {
 public:
  /// Opens for reading. kCheckpoint when nothing of that name exists or it is not a regular file, kIo for
  /// other failures.
  static RawFile open(const std::filesystem::path& path);

  /// Creates an empty file for writing and holds a lock on it until it is closed. A file left by a killed
  /// writer is reused; kCheckpoint if its writer still runs.
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

/// Opens a file to be locked, and creates it if there is none. A symbolic link is not followed but refused, as is all else
/// that is no regular file (kIo).
int open_lock_file(const std::filesystem::path& path);

/// ".NAME.tmp" beside `path`: the name of a file until it is complete.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Size of a file in bytes and its XXH3 hash of 64 bits as 16 lower-case hexadecimal digits.
struct FileDigest {
  int64_t bytes = 0;
  std::string xxh3_64;
  bool operator==(const FileDigest&) const = default;
};

/// Streams the file through the hash; memory is bounded. `on_bytes` receives the number of bytes hashed since
/// its last call.
FileDigest digest_file(const std::filesystem::path& path, const std::function<void(int64_t)>& on_bytes = {});

/// The same hash of a text.
std::string xxh3_64_of(std::string_view text);

/// A whole file of text. kCheckpoint when it is larger than any `what` ("config") is.
std::string read_text(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

/// read_text() parsed as JSON. This and the functions below throw what base/util/json.h refuses as kCheckpoint
/// that starts with the name of the text.
nlohmann::json read_json(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

void read_json_members(std::string_view text, const util::JsonLimits& limits, const std::string& where,
                       const std::function<void(std::string&& key, nlohmann::json&& value)>& on_member);

util::CanonicalJson canonical_json(std::string_view text, int deepest_level, const std::string& where);

}  // namespace fsdp::checkpoint
