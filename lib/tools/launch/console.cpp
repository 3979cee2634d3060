#include "tools/launch/console.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/util/error.h"
#include "base/util/log.h"

namespace fsdp::launch {
namespace {

constexpr std::string_view kEraseRow = "\r\033[K";
constexpr size_t kPendingLimitBytes = 1 << 20;
constexpr std::chrono::seconds kPatienceWithReader{2};

bool same_place(int a, int b) {
  struct stat first, second;
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

int terminal_columns(int fd) {
  if (!::isatty(fd)) return 0;
  constexpr int kUsualColumns = 80;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

std::string fit_columns(std::string_view text, int columns) {
  std::string fitted;
  bool has_sequence = false;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    size_t length = 1;
    if (byte == 0x1B && i + 1 < text.size() && text[i + 1] == '[') {
      length = 2;
      while (i + length < text.size() && (text[i + length] < 0x40 || text[i + length] > 0x7E)) ++length;
      length = std::min(length + 1, text.size() - i);
      has_sequence = true;
    } else if (byte < 0x20 || byte == 0x7F) {
      ++i;
      continue;
    } else {
      while (i + length < text.size() && (static_cast<unsigned char>(text[i + length]) & 0xC0) == 0x80) {
        ++length;
      }
      if (columns-- <= 0) break;
    }
    fitted += text.substr(i, length);
    i += length;
  }
  if (has_sequence && columns < 0) fitted += "\033[0m";
  return fitted;
}

ConsoleStream::ConsoleStream(int fd) : fd_(fd), is_terminal_(terminal_columns(fd) > 0) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return;
  is_regular_file_ = S_ISREG(info.st_mode);
  if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) {
    // O_NONBLOCK on fd itself would affect every process that shares it, such as the user's shell.
    const std::string path = concat("/proc/self/fd/", fd);
    own_ = Descriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
}

bool ConsoleStream::has_room() const { return pending_bytes() < kPendingLimitBytes; }

bool ConsoleStream::is_stalled() const {
  return !has_room() && std::chrono::steady_clock::now() - progress_at_ >= kPatienceWithReader;
}

int ConsoleStream::milliseconds_to_stall() const {
  return takes_lines() ? -1 : milliseconds_until(progress_at_ + kPatienceWithReader);
}

/// Reports dropped lines, once the reader has taken some of the pending output.
void ConsoleStream::tell_of_dropped() {
  if (dropped_ == 0 || discarding_ || pending_bytes() > kPendingLimitBytes / 2) return;
  settle();
  put(concat(util::log_line_begin(), "warning: ", dropped_, dropped_ == 1 ? " line is" : " lines are",
             " missing here, because the launcher's output was not read; --log-dir keeps all lines\n"));
  dropped_ = 0;
}

void ConsoleStream::line(const void* writer, std::string_view prefix, std::string_view text) {
  if (writer != nullptr && (is_stalled() || dropped_ > 0)) {
    ++dropped_;
    abandon(writer);
    return;
  }
  if (open_writer_ == writer && writer != nullptr) {
    put(text.substr(std::min(open_bytes_, text.size())));
    open_writer_ = nullptr;
  } else {
    settle();
    put(prefix);
    put(text);
  }
  put("\n");
}

void ConsoleStream::beginning(const void* writer, std::string_view prefix, std::string_view text) {
  if (is_terminal_) return transient(prefix, text);
  if (!has_room()) return;
  if (open_writer_ == writer) {
    put(text.substr(open_bytes_));
  } else {
    settle();
    put(prefix);
    put(text);
  }
  open_writer_ = writer;
  open_bytes_ = text.size();
}

void ConsoleStream::transient(std::string_view prefix, std::string_view text) {
  if (!is_terminal_) return;
  // Skipped if the terminal is behind, because the next progress bar replaces this one.
  flush();
  if (pending_bytes() > 0) return;
  const int columns = terminal_columns(fd_) - static_cast<int>(prefix.size());
  put(kEraseRow);
  put(prefix);
  put(fit_columns(text, columns));
  row_is_drawn_ = true;
}

void ConsoleStream::abandon(const void* writer) {
  if (open_writer_ == writer) settle();
}

void ConsoleStream::settle() {
  if (row_is_drawn_) put(kEraseRow);
  if (open_writer_) put("\n");
  row_is_drawn_ = false;
  open_writer_ = nullptr;
}

void ConsoleStream::put(std::string_view bytes) {
  if (discarding_) return;
  if (pending_bytes() == 0) progress_at_ = std::chrono::steady_clock::now();
  buffer_ += bytes;
}

void ConsoleStream::flush() {
  while (pending_bytes() > 0) {
    const ssize_t count = write_some();
    if (count > 0) {
      written_ += static_cast<size_t>(count);
      progress_at_ = std::chrono::steady_clock::now();
      tell_of_dropped();
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      failure_ = errno;
      discard();
    }
  }
  // Erases written bytes, but not after each small write, because erasing moves the rest of the buffer.
  if (written_ == buffer_.size() || written_ > kPendingLimitBytes) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

ssize_t ConsoleStream::write_some() {
  const char* bytes = buffer_.data() + written_;
  if (own_.is_open() || is_regular_file_) {
    return ::write(own_.is_open() ? own_.get() : fd_, bytes, pending_bytes());
  }
  // A blocking descriptor, such as a socket: if it polls as writable it takes a page without blocking.
  pollfd entry{fd_, POLLOUT, 0};
  if (::poll(&entry, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  constexpr size_t kPageBytes = 4096;
  return ::write(fd_, bytes, std::min(pending_bytes(), kPageBytes));
}

void ConsoleStream::discard() {
  discarding_ = true;
  buffer_.clear();
  written_ = 0;
}

Console::Console(int out_fd, int err_fd) : err_(std::make_shared<ConsoleStream>(err_fd)) {
  out_ = same_place(out_fd, err_fd) ? err_ : std::make_shared<ConsoleStream>(out_fd);
}

int Console::milliseconds_to_stall() const {
  return sooner(out_->milliseconds_to_stall(), err_->milliseconds_to_stall());
}

bool Console::has_pending() const { return out_->pending_bytes() + err_->pending_bytes() > 0; }

void Console::add_poll_entries(std::vector<pollfd>& entries) const {
  if (out_->pending_bytes() > 0) entries.push_back({out_->fd(), POLLOUT, 0});
  if (err_ != out_ && err_->pending_bytes() > 0) entries.push_back({err_->fd(), POLLOUT, 0});
}

void Console::flush() {
  out_->flush();
  if (err_ != out_) err_->flush();
}

void Console::settle() {
  out_->settle();
  err_->settle();
}

void Console::discard() {
  out_->discard();
  err_->discard();
}

}  // namespace fsdp::launch
