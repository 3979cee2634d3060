#pragma once

// Reads signals to the launcher from a descriptor, so that they do not interrupt it.

#include <signal.h>

#include <string>
#include <vector>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

/// The name of a signal: "SIGTERM", or "signal 40" if it has no name.
std::string signal_name(int signal);

/// Queues SIGCHLD and the signals that are passed on to workers in fd() instead of delivering them, and
/// ignores SIGPIPE. A SIGHUP that was ignored before (nohup) stays ignored. The destructor restores the
/// former state.
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
