#include "base/objects/object_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/hash.h"
#include "base/util/log.h"
#include "base/util/text.h"

namespace fsdp::objects {
namespace {

namespace fs = std::filesystem;

/// Bytes that are added between two looks at the whole cache.
constexpr int64_t kBetweenLooks = int64_t{256} << 20;
/// Copies stay for this time after they were used, whatever the limit: a program may open their files again.
constexpr time_t kCopySeconds = 24 * 3600;

fs::path folder_of_user() {
  if (const char* folder = std::getenv("FSDP_CACHE_DIR"); folder != nullptr && *folder != '\0') return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder != '\0') {
    return fs::path(folder) / "fsdp";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return fs::path(home) / ".cache" / "fsdp";
  }
  fail(
      ErrorKind::kUsage,
      "objects of stores need a folder for their cache, but neither FSDP_CACHE_DIR nor HOME is set; set one");
}

int64_t limit_of_user(const fs::path& folder) {
  if (const char* text = std::getenv("FSDP_CACHE_GIB"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const double gib = std::strtod(text, &end);
    if (*end != '\0' || !(gib >= 0) || gib > 1e9) {
      fail(ErrorKind::kUsage,
           "FSDP_CACHE_GIB must be a number of GiB, such as 100, or 0 for no cache, but is \"",
           util::printable(text), "\"; correct it");
    }
    return static_cast<int64_t>(gib * static_cast<double>(int64_t{1} << 30));
  }
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? int64_t{1} << 30 : static_cast<int64_t>(space.available / 2);
}

struct CachedFile {
  fs::path path;
  int64_t bytes = 0;
  timespec used{};
};

bool was_used_before(const CachedFile& a, const CachedFile& b) {
  return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec : a.used.tv_nsec < b.used.tv_nsec;
}

}  // namespace

ObjectCache::ObjectCache(fs::path folder, int64_t limit_bytes)
    : folder_(std::move(folder)), limit_bytes_(limit_bytes), added_bytes_(kBetweenLooks) {
  util::make_writable_folder(folder_);
  std::error_code error;
  fs::create_directories(blocks(), error);
  fs::create_directories(copies(), error);
}

ObjectCache& ObjectCache::of_user() {
  // Never destroyed: threads may still read when the process ends.
  static auto* const cache = [] {
    const fs::path folder = folder_of_user();
    util::make_writable_folder(folder);
    return new ObjectCache(folder, limit_of_user(folder));
  }();
  return *cache;
}

void ObjectCache::touch(const fs::path& file) { ::utimensat(AT_FDCWD, file.c_str(), nullptr, 0); }

void ObjectCache::added(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    added_bytes_ += bytes;
    if (added_bytes_ < std::min(kBetweenLooks, limit_bytes_ / 16)) return;
    added_bytes_ = 0;
  }
  shrink();
}

void ObjectCache::shrink() {
  const int fd = ::open((folder_ / "limit.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (fd >= 0) ::close(fd);
    return;
  }
  std::vector<CachedFile> files;
  int64_t total = 0;
  std::error_code error;
  for (const fs::path& part : {blocks(), copies()}) {
    fs::recursive_directory_iterator at(part, error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      struct stat status {};
      if (::lstat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
      total += status.st_size;
      const bool is_in_use = part == copies() && status.st_mtim.tv_sec + kCopySeconds > ::time(nullptr);
      if (is_in_use || at->path().extension() == ".lock") continue;
      files.push_back({.path = at->path(), .bytes = status.st_size, .used = status.st_mtim});
    }
  }
  if (total > limit_bytes_) {
    const int64_t before = total;
    std::ranges::sort(files, was_used_before);
    for (const CachedFile& file : files) {
      if (total <= limit_bytes_ / 10 * 9) break;
      if (::unlink(file.path.c_str()) == 0) total -= file.bytes;
    }
    util::log_debug(concat("the cache ", folder_.string(), " exceeded its limit: removed ",
                           util::human_bytes(before - total)));
  }
  ::close(fd);
}

std::string cache_key(const std::string& text) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(util::xxh3_64(text.data(), text.size())));
  return digits;
}

CacheLock::CacheLock(const fs::path& file)
    : fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
  if (fd_ < 0) fail(ErrorKind::kIo, "cannot open the lock ", file.string(), ": ", util::errno_text(errno));
  while (::flock(fd_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const int error = errno;
    ::close(fd_);
    fail(ErrorKind::kIo, "cannot lock ", file.string(), ": ", util::errno_text(error),
         "; put FSDP_CACHE_DIR on a file system that has locks");
  }
}

CacheLock::~CacheLock() { ::close(fd_); }

}  // namespace fsdp::objects
