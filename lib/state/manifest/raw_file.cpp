#include "state/manifest/raw_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/regular_file.h"
#include "base/util/text.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
using util::errno_text;

namespace {

/// Bytes per call. Linux transfers at most about 2 GiB, and a process reacts to signals sooner between
/// smaller pieces.
constexpr int64_t kLargestTransfer = int64_t{1} << 30;
constexpr int64_t kHashBlock = int64_t{1} << 20;

/// Calls `body` and prefixes errors of base/util/json.h with the name of the text.
template <typename Body>
auto naming(const std::string& where, const Body& body) {
  try {
    return body();
  } catch (const util::JsonError& error) {
    fail(ErrorKind::kCheckpoint, where, " ", error.what());
  }
}

}  // namespace

RawFile RawFile::open(const fs::path& path) {
  const util::OpenedFile opened = util::open_regular(path);
  if (opened.found != nullptr) {
    fail(ErrorKind::kCheckpoint, path.string(), " must be a file, but is ", opened.found);
  }
  if (opened.fd < 0) {
    const bool missing = opened.error == ENOENT || opened.error == ENOTDIR;
    fail(missing ? ErrorKind::kCheckpoint : ErrorKind::kIo, "cannot open ", path.string(), ": ",
         errno_text(opened.error));
  }
  return {path, util::Descriptor(opened.fd)};
}

util::Descriptor open_lock_file(const fs::path& path) {
  // A link could lead to a file that is not a lock, and that would be emptied.
  util::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  struct stat status {};
  if (file.is_open() && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode)) return file;
  if (file.is_open() || errno == ELOOP) {
    fail(ErrorKind::kIo, path.string(), " must be a file of this toolkit, but is ",
         file.is_open() ? "a device or pipe" : "a symbolic link", "; remove it");
  }
  fail(ErrorKind::kIo, "cannot create ", path.string(), ": ", errno_text(errno));
}

bool still_has_its_name(const util::Descriptor& opened, const fs::path& path) {
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
  util::write_all(fd_.get(), {static_cast<const char*>(data), static_cast<size_t>(bytes)}, path_);
}

void RawFile::sync() {
  if (::fsync(fd_.get()) != 0) fail(ErrorKind::kIo, "cannot flush ", path_.string(), ": ", errno_text(errno));
}

fs::path temporary_name(const fs::path& path) {
  return path.parent_path() / concat(".", path.filename().string(), ".tmp");
}

FileDigest digest_file(const fs::path& path, const std::function<void(int64_t)>& on_bytes) {
  RawFile file = RawFile::open(path);
  FileDigest digest;
  digest.bytes = file.size_bytes();
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  FSDP_CHECK(state && XXH3_64bits_reset(state.get()) == XXH_OK);
  std::vector<char> block(static_cast<size_t>(kHashBlock));
  for (int64_t at = 0; at < digest.bytes; at += kHashBlock) {
    int64_t count = std::min(kHashBlock, digest.bytes - at);
    file.read_at(at, block.data(), count);
    FSDP_CHECK(XXH3_64bits_update(state.get(), block.data(), static_cast<size_t>(count)) == XXH_OK);
    if (on_bytes) on_bytes(count);
  }
  digest.xxh3_64 = util::hex_digits(XXH3_64bits_digest(state.get()));
  return digest;
}

std::string xxh3_64_of(std::string_view text) {
  return util::hex_digits(XXH3_64bits(text.data(), text.size()));
}

std::string read_text(const fs::path& path, int64_t largest_bytes, const std::string& what) {
  RawFile file = RawFile::open(path);
  const int64_t bytes = file.size_bytes();
  if (bytes > largest_bytes) {
    fail(ErrorKind::kCheckpoint, path.string(), " has ", bytes, " bytes, more than any ", what);
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read_at(0, text.data(), bytes);
  return text;
}

json read_json(const fs::path& path, int64_t largest_bytes, const std::string& what) {
  const std::string text = read_text(path, largest_bytes, what);
  return naming(path.string(), [&] { return util::parse_json(text, {.deepest_level = 16}); });
}

void read_json_members(std::string_view text, const util::JsonLimits& limits, const std::string& where,
                       const std::function<void(std::string&& key, json&& value)>& on_member) {
  naming(where, [&] { util::read_json_members(text, limits, on_member); });
}

util::CanonicalJson canonical_json(std::string_view text, int deepest_level, const std::string& where) {
  return naming(where, [&] { return util::CanonicalJson(text, {.deepest_level = deepest_level}); });
}

}  // namespace fsdp::checkpoint
