#include "data/tokens/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"

namespace fsdp::data {
namespace fs = std::filesystem;

OutputFile::OutputFile(const fs::path& path) : path_(path), temporary_(path) {
  if (path_.has_parent_path()) util::make_writable_folder(path_.parent_path());
  remove_abandoned();
  temporary_ = util::temporary_name(path_);
  for (struct stat status{}; status.st_nlink == 0;) {
    lock_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (lock_ < 0) fail_with_errno("open");
    // On a file system without locks, abandoned files stay.
    if (::flock(lock_, LOCK_EX) != 0 || ::fstat(lock_, &status) != 0) break;
    // Another process removed the file as abandoned, before it was locked.
    if (status.st_nlink == 0) ::close(lock_);
  }
  const int fd = ::fcntl(lock_, F_DUPFD_CLOEXEC, 0);
  file_ = fd < 0 ? nullptr : ::fdopen(fd, "w+b");
  if (file_ != nullptr) return;
  const int cause = errno;
  if (fd >= 0) ::close(fd);
  ::close(lock_);
  ::unlink(temporary_.c_str());
  errno = cause;
  fail_with_errno("open");
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!committed_) ::unlink(temporary_.c_str());
  ::close(lock_);
}

/// Removes files that no process has locked, which killed processes have left.
void OutputFile::remove_abandoned() const {
  const std::string own = path_.filename().string();
  std::error_code error;
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(own + ".tmp-") || !util::is_temporary_name(name)) continue;
    const int fd = ::open(entry->path().c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::unlink(entry->path().c_str()) == 0) {
      util::log_info(
          concat("removed ", entry->path().string(), ", left unfinished by a process that was stopped"));
    }
    ::close(fd);
  }
}

void OutputFile::append(const void* data, int64_t bytes) {
  FSDP_CHECK(file_ != nullptr, "append after finish");
  const auto count = static_cast<size_t>(bytes);
  if (std::fwrite(data, 1, count, file_) != count) fail_with_errno("write");
}

void OutputFile::overwrite(int64_t offset, const void* data, int64_t bytes) {
  if (std::fseek(file_, offset, SEEK_SET) != 0) fail_with_errno("write");
  append(data, bytes);
  if (std::fseek(file_, 0, SEEK_END) != 0) fail_with_errno("write");
}

void OutputFile::read_back(int64_t offset, void* data, int64_t bytes) {
  const auto count = static_cast<size_t>(bytes);
  if (std::fseek(file_, offset, SEEK_SET) != 0) fail_with_errno("write");
  if (std::fread(data, 1, count, file_) != count) fail_with_errno("read");
  if (std::fseek(file_, 0, SEEK_END) != 0) fail_with_errno("read");
}

void OutputFile::finish() {
  FSDP_CHECK(file_ != nullptr, "finish twice");
  if (std::fflush(file_) != 0) fail_with_errno("write");
  if (::fsync(::fileno(file_)) != 0) fail_with_errno("flush");
  if (std::fclose(std::exchange(file_, nullptr)) != 0) fail_with_errno("close");
}

void OutputFile::commit() {
  FSDP_CHECK(file_ == nullptr, "commit before finish");
  util::rename_and_sync(temporary_, path_);
  committed_ = true;
}

void OutputFile::fail_with_errno(const char* action) const {
  fail(ErrorKind::kIo, "cannot ", action, " ", temporary_.string(), ": ", util::errno_text(errno),
       "; nothing was written to ", path_.string(), ", so make room or choose another path and run again");
}

}  // namespace fsdp::data
