#include "tools/launch/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/util/error.h"

namespace fsdp::launch {
namespace {

struct Pipe {
  Descriptor read_end, write_end;
};

[[noreturn]] void fail_to_open(const char* what) {
  fail(ErrorKind::kUsage, "cannot open ", what, " for another worker: ", util::errno_text(errno),
       "; start fewer workers or raise the limit with ulimit -n");
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_to_open("a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void make_non_blocking(const Descriptor& descriptor) {
  const int flags = ::fcntl(descriptor.get(), F_GETFL);
  FSDP_CHECK(flags >= 0 && ::fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) == 0);
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The data that the child needs between fork and exec, prepared before the fork.
struct ChildPlan {
  std::vector<char*> argv, environment;
  cpu_set_t cpus;
  bool binds_cpus;
  pid_t launcher;
  int in, out, err, report, channel;
};

/// Runs in the child. On failure it writes errno to the report pipe, which exec closes on success.
[[noreturn]] void become_program(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the launcher died before the line above, the signal is never sent.
  if (::getppid() != plan.launcher) ::_exit(127);

  // SIGHUP keeps its disposition: under nohup workers ignore it too.
  for (int signal : {SIGPIPE, SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGXFSZ})
    ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  // Fails if CPUs went offline after they were listed. The worker runs unbound then.
  if (plan.binds_cpus) ::sched_setaffinity(0, sizeof(plan.cpus), &plan.cpus);
  if (plan.channel >= 0) ::fcntl(plan.channel, F_SETFD, 0);
  if (::dup2(plan.in, 0) >= 0 && ::dup2(plan.out, 1) >= 0 && ::dup2(plan.err, 2) >= 0) {
    ::execvpe(plan.argv[0], plan.argv.data(), plan.environment.data());
  }
  const int cause = errno;
  [[maybe_unused]] ssize_t written = ::write(plan.report, &cause, sizeof(cause));
  ::_exit(127);
}

/// The errno of the child's failed exec, or 0 if a successful exec closed the pipe.
int read_report(const Descriptor& report) {
  int cause = 0;
  const ssize_t count = TEMP_FAILURE_RETRY(::read(report.get(), &cause, sizeof(cause)));
  return count == sizeof(cause) ? cause : 0;
}

std::optional<ExitStatus> reap_with(pid_t pid, int flags) {
  siginfo_t info{};
  const auto result =
      TEMP_FAILURE_RETRY(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | flags));
  FSDP_CHECK(result == 0, "waiting for process ", pid, ": ", util::errno_text(errno));
  if (info.si_pid == 0) return std::nullopt;
  // WNOWAIT left a zombie, so the number of its process group cannot be reused yet.
  ::kill(-pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  if (info.si_code == CLD_EXITED) return ExitStatus{.exit_code = info.si_status};
  return ExitStatus{.signal = info.si_status};
}

}  // namespace

Process spawn(const ProcessSpec& spec) {
  FSDP_CHECK(!spec.argv.empty());
  Pipe out = make_pipe(), err = make_pipe(), report = make_pipe();
  make_non_blocking(out.read_end);
  make_non_blocking(err.read_end);
  Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.is_open()) fail_to_open("/dev/null");

  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int cpu : spec.cpus) CPU_SET(cpu, &cpus);
  const ChildPlan plan{.argv = pointers_to(spec.argv),
                       .environment = pointers_to(spec.environment),
                       .cpus = cpus,
                       .binds_cpus = !spec.cpus.empty(),
                       .launcher = ::getpid(),
                       .in = spec.inherit_stdin ? STDIN_FILENO : null.get(),
                       .out = out.write_end.get(),
                       .err = err.write_end.get(),
                       .report = report.write_end.get(),
                       .channel = spec.channel};
  const pid_t pid = ::fork();
  if (pid < 0) {
    fail(ErrorKind::kUsage, "cannot start another worker process: ", util::errno_text(errno),
         "; start fewer workers or raise the limit with ulimit -u");
  }
  if (pid == 0) become_program(plan);

  report.write_end.close();
  if (const int cause = read_report(report.read_end)) {
    wait_and_reap(pid);
    fail(ErrorKind::kUsage, "cannot run the program \"", spec.argv[0], "\": ", util::errno_text(cause),
         "; name an executable file by its path, or a program in PATH");
  }
  return {pid, std::move(out.read_end), std::move(err.read_end)};
}

std::optional<ExitStatus> reap(pid_t pid) { return reap_with(pid, WNOHANG); }

void reap_orphans(const std::function<bool(pid_t)>& is_own) {
  for (siginfo_t info{}; ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0; info = {}) {
    // An own child hides other ended children only until its SIGCHLD, when it is reaped.
    if (info.si_pid == 0 || is_own(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

ExitStatus wait_and_reap(pid_t pid) { return *reap_with(pid, 0); }

void signal_group(pid_t pid, int signal) { ::kill(-pid, signal); }

bool would_end(pid_t pid, int signal) {
  std::ifstream status(concat("/proc/", pid, "/status"));
  uint64_t spared = 0;
  bool found = false;
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigBlk:") && !line.starts_with("SigIgn:") && !line.starts_with("SigCgt:"))
      continue;
    spared |= std::strtoull(line.c_str() + std::strlen("SigBlk:"), nullptr, 16);
    found = true;
  }
  return found && (spared >> (signal - 1) & 1) == 0;
}

void open_standard_descriptors() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() returns the lowest free number, which is fd because those below are open by now.
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) return;
  }
}

}  // namespace fsdp::launch
