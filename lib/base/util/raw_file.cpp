#include "base/util/raw_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/regular_file.h"

namespace fsdp::util {
namespace fs = std::filesystem;
namespace {

/// Bytes per call. Linux transfers at most about 2 GiB, and a process reacts to signals sooner between
/// smaller pieces.
constexpr int64_t kLargestTransfer = int64_t{1} << 30;

}  // namespace

RawFile RawFile::open(const fs::path& path) {
  const OpenedFile opened = open_regular(path);
  if (opened.found != nullptr) {
    fail(ErrorKind::kCheckpoint, path.string(), " must be a file, but is ", opened.found);
  }
  if (opened.fd < 0) {
    const bool missing = opened.error == ENOENT || opened.error == ENOTDIR;
    fail(missing ? ErrorKind::kCheckpoint : ErrorKind::kIo, "cannot open ", path.string(), ": ",
         errno_text(opened.error));
  }
  return {path, Descriptor(opened.fd)};
}

Descriptor open_lock_file(const fs::path& path) {
  // A link could lead to a file that is not a lock, and that would be emptied.
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  struct stat status {};
  if (file.is_open() && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode)) return file;
  if (file.is_open() || errno == ELOOP) {
    fail(ErrorKind::kIo, path.string(), " must be a file of this toolkit, but is ",
         file.is_open() ? "a device or pipe" : "a symbolic link", "; remove it");
  }
  fail(ErrorKind::kIo, "cannot create ", path.string(), ": ", errno_text(errno));
}

bool still_has_its_name(const Descriptor& opened, const fs::path& path) {
  struct stat own {
  }, named{};
  return ::fstat(opened.get(), &own) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         own.st_ino == named.st_ino && own.st_dev == named.st_dev;
}

RawFile RawFile::create_locked(const fs::path& path) {
  for (;;) {
    RawFile file(path, open_lock_file(path));
    if (::flock(file.fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        fail(ErrorKind::kCheckpoint, path.string(),
             " is being written by another process; wait for it or choose another output");
      }
      fail(ErrorKind::kIo, "cannot lock ", path.string(), ": ", errno_text(errno));
    }
    // The previous owner may have renamed its finished file between open and lock. Such a file is not ours.
    if (!still_has_its_name(file.fd_, path)) continue;
    if (::ftruncate(file.fd_.get(), 0) != 0)
      fail(ErrorKind::kIo, "cannot empty ", path.string(), ": ", errno_text(errno));
    return file;
  }
}

int64_t RawFile::size_bytes() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0)
    fail(ErrorKind::kIo, "cannot read ", path_.string(), ": ", errno_text(errno));
  return status.st_size;
}

void RawFile::read_at(int64_t offset, void* out, int64_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    ssize_t count = ::pread(fd_.get(), to, static_cast<size_t>(std::min(bytes, kLargestTransfer)), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kIo, "cannot read ", path_.string(), ": ", errno_text(errno));
    if (count == 0) {
      fail(ErrorKind::kCheckpoint, path_.string(), " ends at byte ", offset, ", but ", bytes,
           " more bytes were expected; the file is cut off");
    }
    to += count;
    offset += count;
    bytes -= count;
  }
}

void RawFile::write(const void* data, int64_t bytes) {
  write_all(fd_.get(), {static_cast<const char*>(data), static_cast<size_t>(bytes)}, path_);
}

void RawFile::sync() {
  if (::fsync(fd_.get()) != 0) fail(ErrorKind::kIo, "cannot flush ", path_.string(), ": ", errno_text(errno));
}

}  // namespace fsdp::util
