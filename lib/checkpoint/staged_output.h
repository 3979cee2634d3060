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
///
/// Where it replaces another, the two exchange their names at once (renameat2), so that at any moment the one
/// or the other is there whole. File systems that cannot, as NFS, rename the old one to ".NAME.replaced" and
/// then the new one; who is killed between the two leaves both whole, and the next one that fills the folder
/// begins by giving the old one its name again.
class StagedFolder {
 public:
  /// Locks and empties the temporary folder; kCheckpoint when another process is filling it, or when the
  /// target is there and is not an empty folder and `may_replace` is off. A link to a folder that may be
  /// replaced stays.
  StagedFolder(const std::filesystem::path& target, bool may_replace);
  ~StagedFolder();  ///< removes what was not committed
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& path() const { return staging_; }

  /// Gives the folder its name and syncs. In place of a folder with other files it keeps those of them whose
  /// names are not its own, but for those that `replaces` accepts. kCheckpoint where a folder is in the way
  /// of a file. Until the names change nothing does.
  void commit(const std::function<bool(const std::string& name)>& replaces = {});

 private:
  void refuse_filled_target() const;
  void lock();
  void clean();
  /// Links what stays of the target into the new folder.
  void keep(const std::function<bool(const std::string& name)>& replaces) const;
  void replace_target();

  std::filesystem::path target_, staging_, replaced_;
  bool may_replace_;
  int fd_ = -1;
};

/// The way of file systems that cannot exchange two names; `aside` is the name of the old folder meanwhile.
void replace_by_renaming(const std::filesystem::path& folder, const std::filesystem::path& by,
                         const std::filesystem::path& aside);

}  // namespace fsdp::checkpoint
