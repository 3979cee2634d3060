#pragma once

// The cache of objects on disk, which the processes of a user share.
//
// Layout: FOLDER/blocks/HASH/NUMBER.block is a block of an object's version with a hash of the block at its
// end; FOLDER/copies/HASH/... are whole objects. Files appear by a rename, so that readers see whole ones;
// those that were used longest ago are removed when the cache exceeds its limit. Whoever has such a file open
// keeps its bytes.

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

namespace fsdp::objects {

class ObjectCache {
 public:
  /// `limit_bytes` 0: nothing is kept, and only copies() is used, for whole objects.
  ObjectCache(std::filesystem::path folder, int64_t limit_bytes);

  /// The cache of this process's user: FSDP_CACHE_DIR, or fsdp in XDG_CACHE_HOME or ~/.cache; its limit is
  /// FSDP_CACHE_GIB, by default half of what was free on its disk. Throws Error(kUsage) for a bad number, kIo
  /// if its folder cannot be written.
  static ObjectCache& of_user();

  bool keeps_blocks() const { return limit_bytes_ > 0; }
  std::filesystem::path blocks() const { return folder_ / "blocks"; }
  std::filesystem::path copies() const { return folder_ / "copies"; }

  /// Marks a file as used now. Failures are ignored.
  static void touch(const std::filesystem::path& file);

  /// Counts bytes that were added, and removes old files from time to time. Thread-safe.
  void added(int64_t bytes);

  /// Removes blocks, and copies that were not used for a day, until the cache is below nine tenths of its
  /// limit, if it is above it. Does nothing while another process does the same.
  void shrink();

 private:
  std::filesystem::path folder_;
  int64_t limit_bytes_;
  std::mutex mutex_;
  int64_t added_bytes_;  ///< since the last look at the whole cache
};

/// Text of 16 hexadecimal digits that stands for a name in the cache.
std::string cache_key(const std::string& text);

/// A lock of a file among threads and processes, held during the object's lifetime. Waits for it.
class CacheLock {
 public:
  explicit CacheLock(const std::filesystem::path& file);
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int fd_;
};

}  // namespace fsdp::objects
