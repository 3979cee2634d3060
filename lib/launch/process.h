#pragma once

// Starting one worker, and learning how it ended.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/descriptor.h"

namespace fsdp::launch {

struct ProcessSpec {
  std::vector<std::string> argv;         ///< program (looked up in PATH without a slash) and arguments
  std::vector<std::string> environment;  ///< "NAME=value"
  bool inherit_stdin = false;            ///< else its standard input is /dev/null
  std::vector<int> cpus{};               ///< it may run on; empty: as this process
};

/// A process that leads its own process group, so that a terminal's Ctrl-C reaches it only through the
/// launcher and that signals reach its children too. It dies with the thread that started it.
struct Process {
  pid_t pid = -1;
  Descriptor out;  ///< read ends of its standard output and standard error, non-blocking
  Descriptor err;
};

/// How a process ended: by exit (signal 0) or by a signal.
struct ExitStatus {
  int exit_code = 0;
  int signal = 0;
  /// As a shell reports it: the exit code, or 128 + the signal.
  int code() const { return signal ? 128 + signal : exit_code; }
  bool operator==(const ExitStatus&) const = default;
};

/// Starts a program; when this returns, the program itself is running. The caller must be single-threaded.
/// Throws Error(kUsage) when the program cannot be executed, Error(kUnexpected) when the system refuses a
/// process; nothing is left running then.
Process spawn(const ProcessSpec& spec);

/// Nothing while the process runs. Once it has ended: kills what it left in its process group, reaps it and
/// returns how it ended.
std::optional<ExitStatus> reap(pid_t pid);

/// As reap(), but waits for the end.
ExitStatus wait_and_reap(pid_t pid);

/// Sends a signal to the process and its group.
void signal_group(pid_t pid, int signal);

/// Whether the process neither handles, ignores nor blocks the signal; false for one that is gone.
bool would_end(pid_t pid, int signal);

/// Makes sure that descriptors 0, 1 and 2 are open (on /dev/null if need be), so that no pipe takes their
/// numbers.
void open_standard_descriptors();

}  // namespace fsdp::launch
