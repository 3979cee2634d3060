#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "launch/output_pump.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::launch {

RankLog::RankLog(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a named pipe that nobody reads would wait for ever.
  file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  struct stat info;
  if (!file_.is_open() || ::fstat(file_.get(), &info) != 0) {
    util::fail(util::ErrorKind::kIo, "cannot open the log file ", path_.string(), ": ",
               util::errno_text(errno), "; choose another --log-dir");
  }
  if (!S_ISREG(info.st_mode)) {
    util::fail(util::ErrorKind::kIo, "expected a regular file at ", path_.string(),
               ", found something else; remove it or choose another --log-dir");
  }
}

void RankLog::line(std::string_view text) {
  if (!file_.is_open()) return;
  buffer_ += text;
  buffer_ += '\n';
}

void RankLog::flush() {
  for (size_t done = 0; done < buffer_.size() && file_.is_open();) {
    const ssize_t count = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      util::log_warning(util::concat("cannot write ", path_.string(), ": ", util::errno_text(errno),
                                     "; the run goes on without this file"));
      file_.close();
    }
  }
  buffer_.clear();
}

}  // namespace fsdp::launch
