#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/objects/object_cache.h"
#include "base/objects/object_store.h"
#include "base/util/work_queue.h"

namespace fsdp::objects {

/// An object that is read by ranges, in blocks that the cache keeps, or a few of them this object if there is
/// no cache. The threads and processes that need a block at the same time fetch it once. Thread-safe.
class ObjectFile {
 public:
  /// Finds the object. Throws Error(kData) if it does not exist or has no ranges, kIo if the store fails.
  explicit ObjectFile(const std::string& name)
      : ObjectFile(name, object_store(name), ObjectCache::of_user()) {}
  ObjectFile(std::string name, ObjectStore& store, ObjectCache& cache);
  ~ObjectFile();

  const std::string& name() const { return name_; }
  int64_t size_bytes() const { return object_.size_bytes; }
  const std::string& version() const { return object_.version; }

  /// Fills `out` with the bytes from `offset` on. Throws Error(kData) if the object has changed since it was
  /// found, kIo if the store fails. Requires: the object has them.
  void read_at(int64_t offset, int64_t bytes, void* out) const;

  /// Begins to fetch bytes that will be read. Only a hint: a failure is reported by the read.
  void will_read(int64_t offset, int64_t bytes) const;

  /// Bytes that were requested from the store.
  int64_t fetched_bytes() const;

 private:
  using Block = std::shared_ptr<const std::vector<char>>;

  int64_t block_bytes(int64_t number) const;
  std::string block_path(int64_t number) const;
  bool copy_cached(int64_t number, int64_t begin, int64_t bytes, char* out) const;
  Block kept(int64_t number) const;
  void keep(int64_t number, Block block) const;
  Block fetched(int64_t number) const;
  Block fetch_into_cache(int64_t number) const;
  Block read_cached(int64_t number) const;

  std::string name_;
  ObjectStore& store_;
  ObjectCache& cache_;
  ObjectInfo object_;
  int64_t block_size_;
  std::string folder_;  ///< of the blocks in the cache

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::set<int64_t> being_fetched_;
  mutable std::set<int64_t> verified_;                   ///< blocks in the cache whose hash was compared
  mutable std::list<std::pair<int64_t, Block>> recent_;  ///< without a cache: blocks, the newest first
  mutable int64_t fetched_bytes_ = 0;
  mutable std::unique_ptr<util::WorkQueue<void>> ahead_;  ///< destroyed first
};

}  // namespace fsdp::objects
