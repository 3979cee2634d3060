#include "base/util/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string_view>

#include "base/util/error.h"

namespace fsdp::util {
namespace fs = std::filesystem;

OpenedFile open_regular(const fs::path& path) {
  // O_NONBLOCK: opening a pipe without a writer would otherwise wait for one; no effect on regular files.
  OpenedFile file{.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status {};
  if (file.fd < 0 || ::fstat(file.fd, &status) != 0) {
    file.error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    file.found = S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe";
  } else {
    return file;
  }
  if (file.fd >= 0) ::close(file.fd);
  file.fd = -1;
  return file;
}

namespace {

/// Calls visit(bytes) for pieces of the file, at most `most_bytes` bytes in all, and closes it.
template <typename Visit>
void read_pieces(int fd, const fs::path& path, size_t most_bytes, const Visit& visit) {
  struct Closing {
    int fd;
    ~Closing() { ::close(fd); }
  } const closing{fd};
  char buffer[1 << 16];
  while (most_bytes > 0) {
    const ssize_t count = ::read(fd, buffer, std::min(sizeof(buffer), most_bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::kIo, "cannot read ", path.string(), ": ", errno_text(errno));
    if (count == 0) return;
    most_bytes -= static_cast<size_t>(count);
    visit(std::string_view(buffer, static_cast<size_t>(count)));
  }
}

}  // namespace

std::string read_beginning(const fs::path& path, size_t most_bytes) {
  const OpenedFile file = open_regular(path);
  std::string content;
  if (file.fd < 0) return content;
  read_pieces(file.fd, path, most_bytes, [&](std::string_view piece) { content += piece; });
  return content;
}

void read_lines(const fs::path& path, size_t longest_bytes,
                const std::function<void(const std::string& line)>& visit) {
  const OpenedFile file = open_regular(path);
  if (file.found != nullptr) fail(ErrorKind::kIo, path.string(), " must be a file, but is ", file.found);
  if (file.fd < 0) {
    fail(ErrorKind::kIo, "cannot open ", path.string(), " for reading: ", errno_text(file.error));
  }
  std::string line;
  bool has_begun = false;
  read_pieces(file.fd, path, std::numeric_limits<size_t>::max(), [&](std::string_view piece) {
    while (!piece.empty()) {
      const size_t end = std::min(piece.find('\n'), piece.size());
      line += piece.substr(0, std::min(end, longest_bytes - line.size()));
      has_begun = true;
      if (end == piece.size()) return;
      visit(line);
      line.clear();
      has_begun = false;
      piece.remove_prefix(end + 1);
    }
  });
  if (has_begun) visit(line);
}

int create_own_file(const fs::path& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  constexpr int kAttempts = 100;
  int fd = -1;
  // Another thread, or a process with the same id on another host, may create and remove the file meanwhile.
  for (int i = 0; i < kAttempts; ++i) {
    fd = ::open(path.c_str(), kFlags, 0666);
    if (fd >= 0 || errno != EEXIST) return fd;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return -1;
  }
  return fd;
}

}  // namespace fsdp::util
