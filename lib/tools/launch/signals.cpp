#include "tools/launch/signals.h"

#include <string.h>
#include <sys/signalfd.h>

#include <cerrno>

#include "base/util/error.h"

namespace fsdp::launch {

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? concat("SIG", name) : concat("signal ", signal);
}

SignalWatch::SignalWatch(const std::vector<int>& passed_on) {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (int signal : passed_on) sigaddset(&watched, signal);
  // A blocked signal reaches the descriptor even if it is ignored, so an ignored SIGHUP is not blocked.
  struct sigaction hangup;
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) sigdelset(&watched, SIGHUP);

  descriptor_ = Descriptor(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_.is_open()) {
    fail(ErrorKind::kUnexpected, "cannot watch signals: ", util::errno_text(errno));
  }
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &previous_pipe_);
  // If SIGCHLD is ignored, which is inherited from the parent, children vanish without an exit status.
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, &previous_child_);
  ::sigprocmask(SIG_BLOCK, &watched, &previous_mask_);
}

SignalWatch::~SignalWatch() {
  // Drops SIGCHLDs of reaped workers. Other pending signals are delivered below.
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const timespec now{};
  while (::sigtimedwait(&child, nullptr, &now) > 0) {
  }
  ::sigaction(SIGPIPE, &previous_pipe_, nullptr);
  ::sigaction(SIGCHLD, &previous_child_, nullptr);
  ::sigprocmask(SIG_SETMASK, &previous_mask_, nullptr);
}

std::vector<int> SignalWatch::take() {
  std::vector<int> signals;
  signalfd_siginfo info;
  while (::read(descriptor_.get(), &info, sizeof(info)) == sizeof(info)) {
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
  return signals;
}

}  // namespace fsdp::launch
