#pragma once

// Runs a program the way a user would and captures what it prints, how it ends and how long it takes.
//
//   ProgramResult result = run({binary, "--flag"}, {.stdin_text = "input", .timeout_seconds = 20});
//
// RunningProgram is for tests that act while the program runs: read its first output, send it a signal.
// A program that outlives its time limit is killed with its whole process group, and so is one whose
// RunningProgram is destroyed, so that a failing test leaves nothing behind.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::testing {

struct RunOptions {
  /// Added to this process's environment; std::nullopt removes the variable.
  std::map<std::string, std::optional<std::string>> env{};
  std::string stdin_text{};
  std::filesystem::path working_folder{};  ///< empty: this process's
  double timeout_seconds = 60;
  /// Above 0: stdout and stderr are one terminal of that width, and `out` has both.
  int terminal_columns = 0;
};

struct ProgramResult {
  int exit_code = -1;  ///< 128 + the signal if a signal ended it, as a shell reports it
  std::string out, err;
  double seconds = 0;
  bool timed_out = false;
  /// Most that was resident at once, of the program and, because the system counts so, of this process when
  /// it started the program: a bound from above, which says something in small tests.
  int64_t peak_resident_bytes = 0;
};

class RunningProgram {
 public:
  /// Throws std::runtime_error when the program cannot be started.
  explicit RunningProgram(const std::vector<std::string>& argv, RunOptions options = {})
      : options_(std::move(options)), started_(Clock::now()) {
    start(argv);
  }
  ~RunningProgram() {
    if (pid_ > 0) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    for (int* fd : {&in_, &out_, &err_}) close(*fd);
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& out() const { return result_.out; }
  const std::string& err() const { return result_.err; }
  void send(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }

  /// Reads until stdout or stderr contains `text` that many times; false when the program's output ends, or
  /// its time, first.
  bool wait_for(const std::string& text, int times = 1) {
    const auto count_in = [&](const std::string& output) {
      int count = 0;
      for (size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) ++count;
      return count;
    };
    const auto found = [&] { return std::max(count_in(result_.out), count_in(result_.err)) >= times; };
    while (!found()) {
      if (seconds_left() <= 0 || (out_ < 0 && err_ < 0)) return false;
      exchange(100);
    }
    return true;
  }

  /// Waits for the end of the program. Output that a daemon of the program writes later is not waited for.
  ProgramResult wait() {
    while (pid_ > 0) {
      exchange(out_ < 0 && err_ < 0 ? 5 : 20);
      if (!result_.timed_out && seconds_left() <= 0) {
        result_.timed_out = true;
        ::kill(-pid_, SIGKILL);
      }
      int status = 0;
      rusage usage{};
      if (::wait4(pid_, &status, WNOHANG, &usage) == pid_) {
        pid_ = -1;
        result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        result_.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
        result_.peak_resident_bytes = int64_t{1024} * usage.ru_maxrss;
      }
    }
    while (exchange(0)) {
    }
    return result_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void start(const std::vector<std::string>& argv) {
    int in_pipe[2] = {-1, -1}, out_pipe[2] = {-1, -1}, err_pipe[2] = {-1, -1}, report[2] = {-1, -1};
    check(::pipe2(in_pipe, O_CLOEXEC) == 0 && ::pipe2(report, O_CLOEXEC) == 0, "pipe");
    if (options_.terminal_columns > 0) {
      open_terminal(out_pipe);
      err_pipe[1] = ::fcntl(out_pipe[1], F_DUPFD_CLOEXEC, 0);
    } else {
      check(::pipe2(out_pipe, O_CLOEXEC) == 0 && ::pipe2(err_pipe, O_CLOEXEC) == 0, "pipe");
    }
    in_ = in_pipe[1];
    out_ = out_pipe[0];
    err_ = err_pipe[0];
    for (int fd : {in_, out_, err_}) {
      if (fd >= 0) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
    ::signal(SIGPIPE, SIG_IGN);  // a program need not read its stdin

    // Between fork and exec only async-signal-safe calls: this process may have threads.
    const std::vector<std::string> environment = make_environment();
    const std::vector<char*> arguments = pointers_to(argv), variables = pointers_to(environment);
    const std::string folder = options_.working_folder.string();
    pid_ = ::fork();
    check(pid_ >= 0, "fork");
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::signal(SIGPIPE, SIG_DFL);
      const bool ready = (folder.empty() || ::chdir(folder.c_str()) == 0) && ::dup2(in_pipe[0], 0) >= 0 &&
                         ::dup2(out_pipe[1], 1) >= 0 && ::dup2(err_pipe[1], 2) >= 0;
      if (ready) ::execvpe(arguments[0], arguments.data(), variables.data());
      const int cause = errno;
      [[maybe_unused]] ssize_t written = ::write(report[1], &cause, sizeof(cause));
      ::_exit(127);
    }
    for (int fd : {in_pipe[0], out_pipe[1], err_pipe[1], report[1]}) ::close(fd);
    int cause = 0;
    const bool failed = ::read(report[0], &cause, sizeof(cause)) == sizeof(cause);
    ::close(report[0]);
    if (failed) {
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
      throw std::runtime_error("cannot run " + argv[0] + ": " + std::strerror(cause));
    }
  }

  void open_terminal(int ends[2]) {
    ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    check(ends[0] >= 0 && ::grantpt(ends[0]) == 0 && ::unlockpt(ends[0]) == 0, "pseudo-terminal");
    ends[1] = ::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    check(ends[1] >= 0, "pseudo-terminal");
    const winsize size{.ws_row = 24,
                       .ws_col = static_cast<unsigned short>(options_.terminal_columns),
                       .ws_xpixel = 0,
                       .ws_ypixel = 0};
    check(::ioctl(ends[1], TIOCSWINSZ, &size) == 0, "terminal size");
  }

  std::vector<std::string> make_environment() const {
    std::vector<std::string> entries;
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      if (!options_.env.contains(text.substr(0, text.find('=')))) entries.push_back(text);
    }
    // The token that launchers make for all runs of a user is none of the tests' business.
    if (std::getenv("XDG_CONFIG_HOME") == nullptr && !options_.env.contains("XDG_CONFIG_HOME")) {
      const auto folder =
          std::filesystem::temp_directory_path() / ("fsdp-test-config-" + std::to_string(::getuid()));
      entries.push_back("XDG_CONFIG_HOME=" + folder.string());
    }
    for (const auto& [name, value] : options_.env) {
      if (value) entries.push_back(name + "=" + *value);
    }
    return entries;
  }

  static std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
    pointers.push_back(nullptr);
    return pointers;
  }

  /// Feeds stdin and reads stdout and stderr for up to `wait_ms`; true when something moved.
  bool exchange(int wait_ms) {
    pollfd entries[] = {{in_, POLLOUT, 0}, {out_, POLLIN, 0}, {err_, POLLIN, 0}};  // -1: left out
    if (::poll(entries, 3, wait_ms) <= 0) return false;
    bool moved = false;
    if (entries[0].revents) moved |= feed();
    if (entries[1].revents) moved |= read_into(out_, result_.out);
    if (entries[2].revents) moved |= read_into(err_, result_.err);
    return moved;
  }

  bool feed() {
    const std::string& text = options_.stdin_text;
    const ssize_t count = ::write(in_, text.data() + fed_, text.size() - fed_);
    if (count < 0 && errno == EAGAIN) return false;
    if (count > 0) fed_ += static_cast<size_t>(count);
    if (count < 0 || fed_ == text.size()) close(in_);
    return count > 0;
  }

  static bool read_into(int& fd, std::string& text) {
    char buffer[1 << 16];
    const ssize_t count = ::read(fd, buffer, sizeof(buffer));
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno != EAGAIN)) close(fd);  // EIO: the terminal's other end is closed
    return count > 0;
  }

  static void close(int& fd) {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }

  static void check(bool condition, const char* what) {
    if (!condition) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  }

  double seconds_left() const {
    return options_.timeout_seconds - std::chrono::duration<double>(Clock::now() - started_).count();
  }

  RunOptions options_;
  Clock::time_point started_;
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  size_t fed_ = 0;
  ProgramResult result_;
};

/// Whether a program can be given a terminal here; a bare container may have no pseudo-terminals.
inline bool terminal_can_be_made() {
  int fd = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return false;
  bool usable = ::grantpt(fd) == 0 && ::unlockpt(fd) == 0;
  ::close(fd);
  return usable;
}

/// Runs a program to its end.
inline ProgramResult run(const std::vector<std::string>& argv, RunOptions options = {}) {
  return RunningProgram(argv, std::move(options)).wait();
}

/// Whether a process of that number exists and is not a zombie that waits to be reaped.
inline bool process_runs(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const size_t name_end = text.rfind(')');  // the name before the state may hold anything
  return name_end + 2 < text.size() && text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

/// Asks until the condition holds; false when it does not within the time.
template <typename Condition>
bool eventually(Condition&& condition, double seconds = 10) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::usleep(10000);
  }
  return true;
}

}  // namespace fsdp::testing
