#pragma once

// Outputs that appear under their name only when they are complete. The next run removes leftovers of a
// killed run.

#include <filesystem>
#include <functional>
#include <string>

#include "base/util/descriptor.h"

namespace fsdp::checkpoint {

bool is_empty_folder(const std::filesystem::path& path);

inline constexpr const char* kForceRemedy = "choose another output or replace it with `overwrite`";

/// Throws Error(kCheckpoint) with the remedy if the path exists.
void refuse_existing(const std::filesystem::path& path, const char* remedy = kForceRemedy);

/// A folder that is filled as ".NAME.partial" beside its final name. Two processes cannot fill the same
/// folder.
///
/// If it replaces another folder, the two exchange their names atomically (renameat2), so that the name
/// always leads to a whole folder. If the file system cannot exchange names (NFS), the old folder is renamed
/// to ".NAME.replaced" before the new folder gets its name. A process killed in between leaves both whole,
/// and the next StagedFolder for that name first renames the old folder back.
class StagedFolder {
 public:
  /// Locks and empties the temporary folder. Throws Error(kCheckpoint) if another process is filling it, or
  /// if the target exists, is not an empty folder, and `may_replace` is off. If the target is a link to a
  /// folder that may be replaced, the link stays and the folder is replaced.
  StagedFolder(const std::filesystem::path& target, bool may_replace);
  ~StagedFolder();  ///< removes the temporary folder unless it was committed
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& path() const { return staging_; }

  /// Gives the folder its name and syncs. Files of a replaced folder are kept unless the new one has a file
  /// of the same name or `replaces` accepts their name. Throws Error(kCheckpoint) if a folder has the name of
  /// a new file. The target is unchanged until the names are exchanged.
  void commit(const std::function<bool(const std::string& name)>& replaces = {});

 private:
  void refuse_filled_target() const;
  void lock();
  void clean();
  /// Links the kept files of the target into the new folder.
  void keep(const std::function<bool(const std::string& name)>& replaces) const;
  void replace_target();

  std::filesystem::path target_, staging_, replaced_;
  bool may_replace_;
  util::Descriptor fd_;
};

/// Replaces a folder on file systems that cannot exchange two names. `aside`: the old folder's temporary
/// name.
void replace_by_renaming(const std::filesystem::path& folder, const std::filesystem::path& by,
                         const std::filesystem::path& aside);

}  // namespace fsdp::checkpoint
