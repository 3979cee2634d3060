#pragma once

// Files whose reads and writes either complete or throw an Error that names the path: raw bytes, hashes, and
// JSON within limits (base/util/json.h).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/util/descriptor.h"
#include "base/util/json.h"

namespace fsdp::checkpoint {

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
  RawFile(std::filesystem::path path, util::Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::filesystem::path path_;
  util::Descriptor fd_;
};

/// Opens a file that the caller will lock, and creates it if it does not exist. Throws Error(kIo) for a
/// symbolic link and for anything else that is not a regular file.
util::Descriptor open_lock_file(const std::filesystem::path& path);

/// Whether the path, without following links, still leads to the open file or folder.
bool still_has_its_name(const util::Descriptor& opened, const std::filesystem::path& path);

/// The name of a file until it is complete: ".NAME.tmp" beside `path`.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Size of a file in bytes and its XXH3 hash of 64 bits as 16 lower-case hexadecimal digits.
struct FileDigest {
  int64_t bytes = 0;
  std::string xxh3_64;
  bool operator==(const FileDigest&) const = default;
};

/// Computes the digest in bounded memory. `on_bytes` receives the number of bytes hashed since its last call.
FileDigest digest_file(const std::filesystem::path& path, const std::function<void(int64_t)>& on_bytes = {});

/// The XXH3 hash of a text, in the same form.
std::string xxh3_64_of(std::string_view text);

/// Reads a whole file of text. Throws Error(kCheckpoint) if it is larger than `largest_bytes`; `what`
/// ("config") is its kind in the message.
std::string read_text(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

/// Parses read_text() as JSON. This function and those below throw Error(kCheckpoint) that begins with the
/// name of the text if base/util/json.h refuses it.
nlohmann::json read_json(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

void read_json_members(std::string_view text, const util::JsonLimits& limits, const std::string& where,
                       const std::function<void(std::string&& key, nlohmann::json&& value)>& on_member);

util::CanonicalJson canonical_json(std::string_view text, int deepest_level, const std::string& where);

}  // namespace fsdp::checkpoint
