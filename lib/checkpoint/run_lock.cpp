#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
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

/// What the holder has written into the file, for the message only.
std::string holder_of(int fd) {
  std::array<char, 300> text{};
  ssize_t count = ::pread(fd, text.data(), text.size(), 0);
  std::string holder(text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  bool is_name = holder.starts_with("process ");
  for (char c : holder) is_name = is_name && c >= ' ' && c <= '~';
  return is_name ? holder : "another process";
}

}  // namespace

RunLock::RunLock(const fs::path& folder) {
  const fs::path path = folder / kRunLockName;
  // The file stays for good: removing it would let two runs lock two files of the same name.
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0)
    fail(ErrorKind::kIo, "cannot write into the folder ", folder.string(), ": ", errno_text(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    int cause = errno;
    std::string holder = cause == EWOULDBLOCK ? holder_of(fd_) : "";
    ::close(fd_);
    fd_ = -1;
    if (!holder.empty()) {
      fail(ErrorKind::kUsage, "expected no other run in run.output_dir ", folder.string(), " and found that ",
           holder, " holds ", path.string(), "; wait for it to end or choose another run.output_dir");
    }
    util::log_warning(concat("cannot lock ", path.string(), " (", errno_text(cause),
                             "); nothing will stop a second run from using this folder"));
    return;
  }
  std::string text = this_process();
  // Only a courtesy to whoever is refused: a full disk must not stop the run here.
  if (::ftruncate(fd_, 0) == 0) {
    [[maybe_unused]] ssize_t written = ::pwrite(fd_, text.data(), text.size(), 0);
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace fsdp::checkpoint
