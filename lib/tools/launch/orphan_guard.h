#pragma once

// Ensures that no process started by workers outlives the launcher, even if the launcher is killed.
//
// Workers die with the launcher (PR_SET_PDEATHSIG), and their process groups are killed when they end. But
// PR_SET_PDEATHSIG does not apply to their children, and children can leave the process group. Each worker
// therefore has a mark in its environment, which its children inherit, and every process with the mark is
// killed at the end: by the launcher or, if the launcher is killed, by the guard, a process in a separate
// session. Only a process that clears its environment, or runs as another user, escapes.

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "tools/launch/descriptor.h"

namespace fsdp::launch {

class OrphanGuard {
 public:
  /// Starts the guard, which also removes `folder` if the launcher is killed. The caller must be
  /// single-threaded. Throws Error(kUnexpected) if the system refuses a process or a pipe.
  explicit OrphanGuard(std::filesystem::path folder = {});
  /// Calls end_marked() and ends the guard.
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  static constexpr const char* kVariable = "FSDP_LAUNCH_ID";
  /// The value of kVariable for workers: the marks of the launchers above this launcher, then its own mark.
  const std::string& marks() const { return marks_; }

  pid_t pid() const { return pid_; }

  /// Kills all processes with this launcher's mark. Returns when none is left, or after some seconds if the
  /// system cannot end a process.
  void end_marked() const;

 private:
  std::filesystem::path folder_;
  std::string mark_, marks_;
  Descriptor life_line_;  ///< closed by the system when the launcher dies
  pid_t pid_ = -1;
};

}  // namespace fsdp::launch
