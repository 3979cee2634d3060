#pragma once

// One run at a time in an output folder.

#include <filesystem>
#include <optional>

namespace fsdp::checkpoint {

inline constexpr const char* kRunLockName = ".lock";

/// Held by rank 0 as long as a run may write into its output folder. The system drops the lock with the
/// process, however it ends, so a killed run leaves a file behind and no lock.
class RunLock {
 public:
  /// Throws kUsage when another run holds it, and kIo when the lock's file cannot be made. On storage that
  /// has no locks it warns and holds nothing.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Throws kIo when the folder that was locked is no longer the one of that name: it was removed, replaced
  /// or unmounted, another run may have the one that is there now, and what is written there would not be
  /// found by this run's successor.
  void require_same_folder() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace fsdp::checkpoint
