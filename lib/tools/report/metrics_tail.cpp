#include "tools/report/metrics_tail.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/util/regular_file.h"

namespace fsdp::report {

bool MetricsTail::poll(const std::function<void()>& restart,
                       const std::function<void(const std::string&)>& line) {
  const int fd = util::open_regular(path_).fd;
  if (fd < 0) return false;
  struct stat now {};
  ::fstat(fd, &now);
  if (now.st_dev != device_ || now.st_ino != inode_ || now.st_size < read_bytes_) {
    if (inode_ != 0) restart();
    device_ = now.st_dev;
    inode_ = now.st_ino;
    read_bytes_ = 0;
    unfinished_.clear();
  }
  char buffer[1 << 16];
  for (ssize_t count; (count = ::pread(fd, buffer, sizeof buffer, read_bytes_)) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    read_bytes_ += count;
    unfinished_.append(buffer, static_cast<size_t>(count));
    size_t begin = 0;
    for (size_t end; (end = unfinished_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      line(unfinished_.substr(begin, end - begin));
    }
    unfinished_.erase(0, begin);
  }
  ::close(fd);
  return true;
}

}  // namespace fsdp::report
