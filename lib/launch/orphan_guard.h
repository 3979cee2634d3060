#pragma once

// Nothing that workers started outlives the launcher, however the launcher ends.
//
// Workers die with the launcher (PR_SET_PDEATHSIG), and their process groups are killed when they end; but
// their children know nothing of the first, and can leave the second. So each worker carries a mark in its
// environment, which its children inherit, and whatever carries the mark is killed at the end: by the
// launcher, or, when that one is killed, by the guard, a process in a session of its own that waits for
// nothing else. Only a process that clears its environment, or runs as another user, gets away.

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "launch/descriptor.h"

namespace fsdp::launch {

class OrphanGuard {
 public:
  /// Starts the guard. It removes `folder` too, when it has to act. The caller must be single-threaded.
  /// Throws Error(kUnexpected) when the system refuses a process or a pipe.
  explicit OrphanGuard(std::filesystem::path folder = {});
  /// end_marked(), and the guard's end.
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  static constexpr const char* kVariable = "FSDP_LAUNCH_ID";
  /// The value of kVariable for workers: this launcher's mark behind those of launchers above it.
  const std::string& marks() const { return marks_; }

  /// Kills all processes with this launcher's mark, and returns when there are none (or after some seconds,
  /// if the system cannot end one).
  void end_marked() const;

 private:
  std::filesystem::path folder_;
  std::string mark_, marks_;
  Descriptor life_line_;  ///< closed by the system when the launcher dies
  pid_t pid_ = -1;
};

}  // namespace fsdp::launch
