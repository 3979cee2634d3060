#include "data/texts/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/objects/object_file.h"
#include "base/objects/object_name.h"
#include "base/util/descriptor.h"
#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/text.h"

namespace fsdp::data {
namespace {

/// A regular file of this machine.
class LocalBytes final : public ByteSource {
 public:
  explicit LocalBytes(const std::string& path)
      // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one.
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_.get() < 0) {
      refuse_text(path_,
                  "cannot be opened (" + util::errno_text(errno) + "); give the path of a readable file");
    }
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) {
      refuse_text(path_, "cannot be examined (" + util::errno_text(errno) + ")");
    }
    if (S_ISDIR(status.st_mode))
      refuse_text(path_, "is a folder; give the files in it, for example FOLDER/*.txt");
    if (!S_ISREG(status.st_mode))
      refuse_text(path_, "is not a regular file; write the text to a file or give it as -");
    if (status.st_size == 0) refuse_text(path_, "is empty; leave it out");
    size_bytes_ = status.st_size;
    version_ = concat(status.st_size, " ", status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec);
  }

  int64_t size_bytes() const override { return size_bytes_; }
  std::string version() const override { return version_; }

  size_t read_at(int64_t offset, size_t bytes, char* to) const override {
    size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::pread(fd_.get(), to + done, bytes - done,
                                  static_cast<off_t>(offset + static_cast<int64_t>(done)));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        refuse_text(path_, "cannot be read (" + util::errno_text(errno) + "); check the disk and run again");
      }
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

 private:
  std::string path_, version_;
  util::Descriptor fd_;
  int64_t size_bytes_ = 0;
};

/// An object of a store. Reading goes ahead of the reader, since texts are read from front to back.
class RemoteBytes final : public ByteSource {
 public:
  explicit RemoteBytes(const std::string& name) : object_(name) {
    if (object_.size_bytes() == 0) refuse_text(name, "is empty; leave it out");
  }

  int64_t size_bytes() const override { return object_.size_bytes(); }
  std::string version() const override { return concat(object_.size_bytes(), " ", object_.version()); }

  size_t read_at(int64_t offset, size_t bytes, char* to) const override {
    constexpr int64_t kAhead = int64_t{8} << 20;
    const auto count = static_cast<int64_t>(bytes);
    object_.will_read(offset, std::min(count + kAhead, object_.size_bytes() - offset));
    object_.read_at(offset, count, to);
    return bytes;
  }

 private:
  objects::ObjectFile object_;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  if (objects::is_remote(path)) return std::make_unique<RemoteBytes>(path);
  return std::make_unique<LocalBytes>(path);
}

void refuse_text(const std::string& path, const std::string& reason) {
  fail(ErrorKind::kData, "the text ", path, " ", reason);
}

uint64_t sampled_hash(const ByteSource& source) {
  constexpr int64_t kSampleBytes = 1 << 15;
  const int64_t size = source.size_bytes(), length = std::min(size, kSampleBytes);
  uint64_t hash = util::mix64(static_cast<uint64_t>(size));
  std::vector<char> bytes(static_cast<size_t>(length));
  for (const int64_t begin : {int64_t{0}, (size - length) / 2, size - length}) {
    const size_t got = source.read_at(begin, bytes.size(), bytes.data());
    hash = util::mix64(hash ^ util::xxh3_64(bytes.data(), got));
  }
  return hash;
}

}  // namespace fsdp::data
