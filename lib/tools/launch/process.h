#pragma once

// Starts, signals and reaps worker processes.

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

struct ProcessSpec {
  std::vector<std::string> argv;         ///< program (found in PATH if it has no slash) and arguments
  std::vector<std::string> environment;  ///< "NAME=value"
  bool inherit_stdin = false;            ///< false: its standard input is /dev/null
  int channel = -1;                      ///< descriptor that it inherits under the same number; -1: none
  std::vector<int> cpus{};               ///< CPUs on which it may run; empty: the CPUs of this process
};

/// A process in a new process group, so that a terminal's Ctrl-C reaches it only through the launcher, and
/// signals also reach its children. It dies with the thread that started it.
struct Process {
  pid_t pid = -1;
  Descriptor out;  ///< read ends of its standard output and standard error, non-blocking
  Descriptor err;
};

/// How a process ended: by exit (signal 0) or by a signal.
struct ExitStatus {
  int exit_code = 0;
  int signal = 0;
  /// The code that a shell reports: the exit code, or 128 + the signal.
  int code() const { return signal ? 128 + signal : exit_code; }
  bool operator==(const ExitStatus&) const = default;
};

/// Starts a program and returns after its exec. The caller must be single-threaded. Throws Error(kUsage) if
/// the program cannot be executed or the system refuses a process, and leaves nothing running.
Process spawn(const ProcessSpec& spec);

/// Returns nothing while the process runs. Once it has ended, kills the rest of its process group, reaps it
/// and returns its status.
std::optional<ExitStatus> reap(pid_t pid);

/// Reaps ended children that are not own: orphans, which become children of process 1, such as a launcher in
/// a container.
void reap_orphans(const std::function<bool(pid_t)>& is_own);

/// Like reap(), but waits for the end.
ExitStatus wait_and_reap(pid_t pid);

/// Sends a signal to the process and its group.
void signal_group(pid_t pid, int signal);

/// Whether the process neither handles, ignores nor blocks the signal; false if it has ended.
bool would_end(pid_t pid, int signal);

/// Opens /dev/null under each of the descriptors 0, 1 and 2 that is closed, so that no pipe gets their
/// numbers.
void open_standard_descriptors();

}  // namespace fsdp::launch
