#include "base/objects/object_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/objects/object_name.h"
#include "base/util/descriptor.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/hash.h"
#include "base/util/log.h"

namespace fsdp::objects {
namespace {

namespace fs = std::filesystem;

/// Blocks in the cache on disk, and those that an ObjectFile keeps in memory where there is none.
constexpr int64_t kCachedBlock = int64_t{1} << 20, kMemoryBlock = int64_t{64} << 10;
constexpr size_t kMemoryBlocks = 256;
constexpr int kThreadsAhead = 8;
/// Files that were used within this time are not marked as used again.
constexpr time_t kTouchSeconds = 600;

bool read_whole(int fd, int64_t offset, void* out, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, static_cast<char*>(out) + done, bytes - done,
                                static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

ObjectFile::ObjectFile(std::string name, ObjectStore& store, ObjectCache& cache)
    : name_(std::move(name)),
      store_(store),
      cache_(cache),
      block_size_(cache.keeps_blocks() ? kCachedBlock : kMemoryBlock) {
  const std::optional<ObjectInfo> found = store_.find(name_);
  if (!found) fail(ErrorKind::kData, "the object ", name_, " does not exist; correct the name");
  object_ = *found;
  if (!object_.has_ranges) {
    fail(ErrorKind::kData, "the object ", name_,
         " must be read by parts, but its server sends whole files only; download it, or use a server that "
         "serves ranges");
  }
  if (!cache_.keeps_blocks()) return;
  const fs::path folder =
      cache_.blocks() / cache_key(concat(name_, '\n', object_.version, '\n', object_.size_bytes));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot create ", folder.string(), ": ", error.message());
  folder_ = folder.string();
}

ObjectFile::~ObjectFile() {
  if (ahead_) ahead_->clear();
  ahead_.reset();
}

int64_t ObjectFile::block_bytes(int64_t number) const {
  return std::min(block_size_, object_.size_bytes - number * block_size_);
}

std::string ObjectFile::block_path(int64_t number) const { return concat(folder_, "/", number, ".block"); }

void ObjectFile::read_at(int64_t offset, int64_t bytes, void* out) const {
  FSDP_CHECK(offset >= 0 && bytes >= 0 && bytes <= object_.size_bytes - offset, "bytes ", offset, " + ",
             bytes, " of ", object_.size_bytes);
  const int64_t first = offset / block_size_, last = (offset + bytes - 1) / block_size_;
  if (last > first) will_read((first + 1) * block_size_, offset + bytes - (first + 1) * block_size_);
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const int64_t number = offset / block_size_, begin = offset - number * block_size_;
    const int64_t here = std::min(bytes, block_bytes(number) - begin);
    if (!copy_cached(number, begin, here, to)) {
      std::memcpy(to, fetched(number)->data() + begin, static_cast<size_t>(here));
    }
    offset += here;
    bytes -= here;
    to += here;
  }
}

void ObjectFile::will_read(int64_t offset, int64_t bytes) const {
  if (bytes <= 0) return;
  const int64_t first = offset / block_size_, last = (offset + bytes - 1) / block_size_;
  for (int64_t number = first; number <= last; ++number) {
    if (cache_.keeps_blocks() ? ::access(block_path(number).c_str(), F_OK) == 0 : kept(number) != nullptr)
      continue;
    {
      const std::lock_guard lock(mutex_);
      if (being_fetched_.contains(number)) continue;
      if (!ahead_) ahead_ = std::make_unique<util::WorkQueue<void>>(kThreadsAhead);
    }
    ahead_->add([this, number] {
      try {
        fetched(number);
      } catch (const std::exception& error) {
        util::log_debug(error.what());  // the read makes the same request and reports its error
      }
    });
  }
}

int64_t ObjectFile::fetched_bytes() const {
  const std::lock_guard lock(mutex_);
  return fetched_bytes_;
}

/// Copies a part of a block that is in the cache or in memory. Returns false if it is not there or is
/// damaged.
bool ObjectFile::copy_cached(int64_t number, int64_t begin, int64_t bytes, char* out) const {
  if (!cache_.keeps_blocks()) {
    const Block block = kept(number);
    if (block != nullptr) std::memcpy(out, block->data() + begin, static_cast<size_t>(bytes));
    return block != nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    if (!verified_.contains(number)) return false;
  }
  const std::string path = block_path(number);
  const util::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) return false;
  if (status.st_mtime + kTouchSeconds < ::time(nullptr)) ObjectCache::touch(path);
  return read_whole(file.get(), begin, out, static_cast<size_t>(bytes));
}

ObjectFile::Block ObjectFile::kept(int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(recent_, number, &std::pair<int64_t, Block>::first);
  if (found == recent_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found);
  return recent_.front().second;
}

void ObjectFile::keep(int64_t number, Block block) const {
  recent_.emplace_front(number, std::move(block));
  if (recent_.size() > kMemoryBlocks) recent_.pop_back();
}

/// Returns a block, which one thread at a time fetches.
ObjectFile::Block ObjectFile::fetched(int64_t number) const {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !being_fetched_.contains(number); });
    being_fetched_.insert(number);
  }
  const auto end = [&](int64_t bytes) {
    const std::lock_guard lock(mutex_);
    being_fetched_.erase(number);
    fetched_bytes_ += bytes;
    changed_.notify_all();
  };
  try {
    Block block = cache_.keeps_blocks() ? fetch_into_cache(number) : kept(number);
    const bool is_new = block == nullptr;
    if (is_new) {
      std::vector<char> bytes(static_cast<size_t>(block_bytes(number)));
      store_.read(name_, object_, number * block_size_, block_bytes(number), bytes.data());
      block = std::make_shared<const std::vector<char>>(std::move(bytes));
      const std::lock_guard lock(mutex_);
      keep(number, block);
    }
    end(is_new ? block_bytes(number) : 0);
    return block;
  } catch (...) {
    end(0);
    throw;
  }
}

/// Returns a whole block of the cache; null if it is not there, or its hash is not that of its bytes.
ObjectFile::Block ObjectFile::read_cached(int64_t number) const {
  const std::string path = block_path(number);
  const util::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return nullptr;
  std::vector<char> bytes(static_cast<size_t>(block_bytes(number)));
  uint64_t hash = 0;
  if (!read_whole(file.get(), 0, bytes.data(), bytes.size()) ||
      !read_whole(file.get(), block_bytes(number), &hash, sizeof(hash)) ||
      hash != util::xxh3_64(bytes.data(), bytes.size())) {
    util::log_warning(concat("the cached block ", path, " is damaged; it is fetched again"));
    return nullptr;
  }
  ObjectCache::touch(path);
  const std::lock_guard lock(mutex_);
  verified_.insert(number);
  return std::make_shared<const std::vector<char>>(std::move(bytes));
}

ObjectFile::Block ObjectFile::fetch_into_cache(int64_t number) const {
  if (Block block = read_cached(number)) return block;
  const std::string path = block_path(number);
  Block block;
  {
    const CacheLock lock(concat(folder_, "/", number % kThreadsAhead, ".lock"));
    if ((block = read_cached(number))) return block;  // another process has fetched it meanwhile
    std::vector<char> bytes(static_cast<size_t>(block_bytes(number)));
    store_.read(name_, object_, number * block_size_, block_bytes(number), bytes.data());
    const uint64_t hash = util::xxh3_64(bytes.data(), bytes.size());
    const fs::path temporary = util::temporary_name(path);
    try {
      std::error_code error;
      fs::create_directories(folder_, error);
      const util::Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
      if (!file.is_open())
        fail(ErrorKind::kIo, "cannot create ", temporary.string(), ": ", util::errno_text(errno));
      util::write_all(file.get(), {bytes.data(), bytes.size()}, temporary);
      util::write_all(file.get(), {reinterpret_cast<const char*>(&hash), sizeof(hash)}, temporary);
      // Not synced: a block that a power cut leaves torn fails its hash and is fetched again.
      if (::rename(temporary.c_str(), path.c_str()) != 0) {
        fail(ErrorKind::kIo, "cannot rename ", temporary.string(), ": ", util::errno_text(errno));
      }
    } catch (const Error& error) {
      ::unlink(temporary.c_str());
      util::log_warning(concat("the cache of objects is not used: ", error.what()));
    }
    block = std::make_shared<const std::vector<char>>(std::move(bytes));
    const std::lock_guard counted(mutex_);
    verified_.insert(number);
    fetched_bytes_ += block_bytes(number);
  }
  cache_.added(block_bytes(number));
  return block;
}

}  // namespace fsdp::objects
