#pragma once

// Signals to the launcher, read from a descriptor instead of interrupting it.

#include <signal.h>

#include <string>
#include <vector>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

/// "SIGTERM"; "signal 40" for those without a name.
std::string signal_name(int signal);

/// During its lifetime SIGCHLD and the signals that are passed on to workers are queued in fd() instead of being
/// delivered, and SIGPIPE is ignored. A SIGHUP that was ignored before (nohup) stays ignored. The destructor
/// restores the former state.
class SignalWatch {
 public:
  explicit SignalWatch(const std::vector<int>& passed_on);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return descriptor_.get(); }  ///< readable when a signal is queued
  std::vector<int> take();                      ///< the signals since the last call

 private:
  Descriptor descriptor_;
  sigset_t previous_mask_;
  struct sigaction previous_pipe_, previous_child_;
};

}  // namespace fsdp::launch
