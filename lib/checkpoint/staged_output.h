#pragma once

// Outputs that appear under their name only when they are complete, and of which a killed run leaves nothing
// that the next run does not clean.

#include <filesystem>
#include <functional>
#include <string>

namespace fsdp::checkpoint {

bool is_empty_folder(const std::filesystem::path& path);

/// kCheckpoint that tells the remedy when something of that name is there.
void refuse_existing(const std::filesystem::path& path, const char* remedy);

/// A folder that is filled as ".NAME.partial" beside its final name. Two processes cannot fill the same one.
class StagedFolder {
 public:
  /// Locks and empties the temporary folder; kCheckpoint when another process is filling it, or when the
  /// target is there and is not an empty folder and `may_add` is off.
  StagedFolder(const std::filesystem::path& target, bool may_add);
  ~StagedFolder();  ///< removes what was not committed
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& path() const { return staging_; }

  /// Gives the folder its name and syncs. Where `may_add` found a folder with other files in it,
  /// `before_adding` removes from it what is to be replaced, and the files are moved in one by one,
  /// `last_file` as the last.
  void commit(const std::string& last_file,
              const std::function<void(const std::filesystem::path&)>& before_adding = {});

 private:
  void lock();

  std::filesystem::path target_, staging_;
  bool may_add_;
  int fd_ = -1;
};

}  // namespace fsdp::checkpoint
