#pragma once

// Checkpoints that were finished and are not what was written any more.

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "util/error.h"

namespace fsdp::checkpoint {

/// The content of a file of a checkpoint is not what was written: another error than one of the system (kIo),
/// of a file that is not there for this process, of a newer format, or of a run that the checkpoint does not
/// fit. Another reading of the same bytes would find it again.
class DamageError : public util::Error {
 public:
  DamageError(std::filesystem::path file, const std::string& message)
      : util::Error(util::ErrorKind::kCheckpoint, message), file_(std::move(file)) {}
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

/// Reads the manifest of a step's folder and those of its files whose name `takes` accepts from the disk, as
/// far as the system lets go of what it holds of them in memory, and compares all that the manifest says of
/// them. The first damage; "" when there is none. Other errors are thrown.
std::string damage_in(const std::filesystem::path& folder,
                      const std::function<bool(const std::string& name)>& takes);

/// Renames a step's folder to NAME.damaged-1, or the next number that is free, which no reader takes for a
/// checkpoint and no run removes. Returns the new name; kIo when the system refuses.
std::filesystem::path set_aside(const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
