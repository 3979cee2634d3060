#include "data/chat/chat_process.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

/// Limit on real time as a multiple of the limit on processor time. A process that waits forever uses no
/// processor time, and others may get a small share of the processors.
constexpr double kPatience = 30;
constexpr int kOutOfMemory = 9;  ///< exit status for exhausted memory
constexpr uint64_t kMostMessageBytes = uint64_t{1} << 31;

/// Sends bytes. Returns false for every error, since the other process has then ended.
bool send_all(int socket, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = ::send(socket, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, data, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool send_message(int socket, const std::string& message) {
  const uint64_t size = message.size();
  return send_all(socket, reinterpret_cast<const char*>(&size), sizeof(size)) &&
         send_all(socket, message.data(), message.size());
}

std::optional<std::string> receive_message(int socket) {
  uint64_t size = 0;
  if (!receive_all(socket, reinterpret_cast<char*>(&size), sizeof(size)) || size > kMostMessageBytes)
    return std::nullopt;
  std::string message(size, '\0');
  if (!receive_all(socket, message.data(), message.size())) return std::nullopt;
  return message;
}

/// Closes inherited descriptors, so that the end of a process is visible at its socket, whichever other
/// processes were started meanwhile.
void close_all_but(int kept) {
  std::vector<int> open;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (const dirent* entry = ::readdir(folder)) open.push_back(std::atoi(entry->d_name));
    ::closedir(folder);
  }
  for (const int fd : open) {
    if (fd > STDERR_FILENO && fd != kept) ::close(fd);
  }
}

void limit(const ProcessLimits& limits) {
  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
#if !defined(__SANITIZE_ADDRESS__)  // AddressSanitizer takes terabytes of addresses
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto most = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + limits.memory_bytes);
  const rlimit memory = {most, most};
  ::setrlimit(RLIMIT_AS, &memory);
#else
  (void)limits;
#endif
}

/// Ends the process by SIGPROF after this much processor time; 0: never.
void end_after(double seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec = static_cast<suseconds_t>(std::fmod(seconds, 1) * 1e6);
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

[[noreturn]] void serve(int socket, const ChatProcess::Handler& handler, const ProcessLimits& limits) {
  for (const int number : {SIGPROF, SIGSEGV, SIGBUS, SIGABRT, SIGTERM, SIGINT}) std::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  close_all_but(socket);
  limit(limits);
  try {
    while (const std::optional<std::string> request = receive_message(socket)) {
      end_after(limits.seconds);
      const std::string answer = handler(*request);
      end_after(0);
      if (!send_message(socket, answer)) break;
    }
  } catch (const std::bad_alloc&) {
    ::_exit(kOutOfMemory);
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

}  // namespace

ChatProcess::ChatProcess(const Handler& handler, const ProcessLimits& limits) : limits_(limits) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
    pid_ = ::fork();
    if (pid_ == 0) serve(ends[1], handler, limits);
    const int error = errno;
    ::close(ends[1]);
    socket_ = ends[0];
    if (pid_ > 0) {
      const timeval patience{.tv_sec = static_cast<time_t>(limits_.seconds * kPatience) + 1, .tv_usec = 0};
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      return;
    }
    ::close(socket_);
    errno = error;
  }
  fail(ErrorKind::kIo, "cannot start a process for chat templates: ", util::errno_text(errno),
       "; raise the limits of processes and open files, or use fewer threads");
}

ChatProcess::~ChatProcess() {
  ::close(socket_);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string ChatProcess::call(const std::string& request) {
  if (!send_message(socket_, request)) report_end(/*waited=*/false);
  errno = 0;
  std::optional<std::string> answer = receive_message(socket_);
  if (!answer) report_end(/*waited=*/errno == EAGAIN || errno == EWOULDBLOCK);
  return std::move(*answer);
}

void ChatProcess::report_end(bool waited) {
  int status = 0;
  ::kill(pid_, SIGKILL);  // has no effect on a process that has ended
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (number == SIGPROF || waited)
    throw ProcessEnded(concat("takes more than ", limits_.seconds, " seconds"));
  if (number == SIGSEGV || number == SIGBUS) throw ProcessEnded("nests or recurses too deeply");
  if (WIFEXITED(status) && WEXITSTATUS(status) == kOutOfMemory) {
    throw ProcessEnded(concat("needs more than ", limits_.memory_bytes >> 20, " MiB of memory"));
  }
  throw ProcessEnded(number > 0 ? concat("ended its process by signal ", number)
                                : concat("ended its process with status ", WEXITSTATUS(status)));
}

}  // namespace fsdp::data
