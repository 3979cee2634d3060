#include "tools/launch/orphan_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/util/error.h"
#include "base/util/system.h"

namespace fsdp::launch {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr useconds_t kPauseMicroseconds = 10000;

/// Whether the process was started with `mark` in its marks. Zombies, and processes that the user may not
/// inspect, show no environment.
bool has_mark(const char* pid, const std::string& mark) {
  const Descriptor file(::open(concat("/proc/", pid, "/environ").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return false;
  const std::string name = concat(OrphanGuard::kVariable, "=");
  std::string text;
  char buffer[1 << 14];
  for (ssize_t count; (count = ::read(file.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  for (size_t start = 0; start < text.size(); start = text.find('\0', start) + 1) {
    const std::string_view entry(text.c_str() + start);
    if (entry.starts_with(name)) return entry.find(mark, name.size()) != std::string_view::npos;
    if (start + entry.size() >= text.size()) break;
  }
  return false;
}

/// Kills the processes with the mark and returns their number.
int kill_marked(const std::string& mark) {
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(::opendir("/proc"), ::closedir);
  if (!processes) return 0;
  int killed = 0;
  while (const dirent* entry = ::readdir(processes.get())) {
    const pid_t pid = std::atoi(entry->d_name);  // 0 for other entries
    if (pid <= 0 || pid == ::getpid() || !has_mark(entry->d_name, mark)) continue;
    if (::kill(pid, SIGKILL) == 0) ++killed;
  }
  return killed;
}

void kill_all_marked(const std::string& mark) {
  // A process that forks while the list is read may have a child that is not in the list, so two successive
  // passes must find none.
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  for (int clean = 0; clean < 2 && std::chrono::steady_clock::now() < give_up;) {
    clean = kill_marked(mark) == 0 ? clean + 1 : 0;
    if (clean == 0) ::usleep(kPauseMicroseconds);
  }
}

[[noreturn]] void keep_guard(int life_line, const std::string& mark, const std::filesystem::path& folder) {
  // The guard must survive signals to the launcher's process group or session.
  ::setsid();
  ::prctl(PR_SET_NAME, "launch-guard");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // If the guard held the launcher's pipes open, their readers would never see the end.
  for (int fd = 0; fd < life_line; ++fd) ::close(fd);
  ::close_range(static_cast<unsigned>(life_line) + 1, ~0U, 0);

  char done = 0;
  if (TEMP_FAILURE_RETRY(::read(life_line, &done, 1)) == 0) {
    kill_all_marked(mark);
    std::error_code ignored;
    if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  }
  ::_exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard(std::filesystem::path folder)
    : folder_(std::move(folder)), mark_(util::random_id()) {
  const char* above = std::getenv(kVariable);
  marks_ = above && *above ? concat(above, ":", mark_) : mark_;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    fail(ErrorKind::kUnexpected, "cannot open a pipe: ", util::errno_text(errno),
         "; raise the limit with ulimit -n");
  }
  Descriptor read_end(ends[0]);
  life_line_ = Descriptor(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) {
    fail(ErrorKind::kUnexpected, "cannot start the launcher's guard: ", util::errno_text(errno),
         "; raise the limit with ulimit -u");
  }
  if (pid_ == 0) keep_guard(read_end.get(), mark_, folder_);
}

OrphanGuard::~OrphanGuard() {
  end_marked();
  const char done = 1;
  [[maybe_unused]] ssize_t written = ::write(life_line_.get(), &done, 1);
  life_line_.close();
  TEMP_FAILURE_RETRY(::waitpid(pid_, nullptr, 0));
}

void OrphanGuard::end_marked() const { kill_all_marked(mark_); }

}  // namespace fsdp::launch
