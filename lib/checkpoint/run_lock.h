#pragma once

// One run at a time in an output folder.

#include <filesystem>

namespace fsdp::checkpoint {

inline constexpr const char* kRunLockName = ".lock";

/// Held by rank 0 as long as a run may write into its output folder. The system releases the lock with the
/// process, however it ends; the file stays.
class RunLock {
 public:
  /// Throws kUsage when another run holds the lock, and kIo when the lock's file cannot be created. On storage
  /// without locks it warns and holds nothing.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Throws kIo when the folder of that name is no longer the one that was locked (it was removed, replaced or
  /// unmounted): another run may hold the new one, and a later run would not find what is written there.
  void require_same_folder() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace fsdp::checkpoint
