#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "util/error.h"
#include "util/host_name.h"
#include "util/log.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::concat;
using util::errno_text;
using util::ErrorKind;
using util::fail;

namespace {

std::string this_process() { return concat("process ", ::getpid(), " on ", util::host_name()); }

/// The holder's name from the file, for the message only.
std::string holder_of(int fd) {
  std::array<char, 300> text{};
  ssize_t count = ::pread(fd, text.data(), text.size(), 0);
  std::string holder(text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  bool is_name = holder.starts_with("process ");
  for (char c : holder) is_name = is_name && c >= ' ' && c <= '~';
  return is_name ? holder : "another process";
}

}  // namespace

RunLock::RunLock(const fs::path& folder) : path_(folder / kRunLockName) {
  // The file is never removed: that would let two runs lock two files of the same name.
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0)
    fail(ErrorKind::kIo, "cannot write into the folder ", folder.string(), ": ", errno_text(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    int cause = errno;
    if (cause == EWOULDBLOCK) {
      std::string holder = holder_of(fd_);
      ::close(fd_);
      fail(ErrorKind::kUsage, "expected no other run in run.output_dir ", folder.string(), " and found that ",
           holder, " holds ", path_.string(), "; wait for it to end or choose another run.output_dir");
    }
    util::log_warning(concat("cannot lock ", path_.string(), " (", errno_text(cause),
                             "); nothing will stop a second run from using this folder"));
    return;
  }
  std::string text = this_process();
  // The text only improves the message of a refused run, so a full disk does not matter here.
  if (::ftruncate(fd_, 0) == 0) {
    [[maybe_unused]] ssize_t written = ::pwrite(fd_, text.data(), text.size(), 0);
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

void RunLock::require_same_folder() const {
  struct stat locked {
  }, named{};
  std::string found;
  if (::stat(path_.c_str(), &named) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return;  // storage that does not answer may do so for the save
    found = concat("none of that name with this run's ", kRunLockName);
  } else if (::fstat(fd_, &locked) == 0 && (locked.st_dev != named.st_dev || locked.st_ino != named.st_ino)) {
    found = "another one of that name";
  } else {
    return;
  }
  fail(ErrorKind::kIo, "expected run.output_dir ", path_.parent_path().string(),
       " to be the folder that this run took at its start and found ", found,
       ": it was removed, replaced or unmounted meanwhile; put it back, or remove it, and start again");
}

}  // namespace fsdp::checkpoint
