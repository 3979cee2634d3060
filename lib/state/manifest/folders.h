#pragma once

// A run's output folder: its checkpoints (their names, which of them are complete, the best one, the one to
// resume from, their removal) and its lock. Nothing here is collective. In a run, only rank 0 calls it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/util/descriptor.h"
#include "base/util/error.h"

namespace fsdp::checkpoint {

/// The name of a step's folder: "step-00000100".
std::string step_folder_name(int64_t step);

/// The step in a name that step_folder_name() makes. Nothing for any other name.
std::optional<int64_t> step_of_folder_name(const std::string& name);

struct CompleteCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
  std::string run;  ///< id of the run that wrote it (run_identity.h); "": unknown
};

/// Why a checkpoint is not complete.
enum class Tear {
  kUnfinished,  ///< was never completed
  kDamaged,     ///< was complete; its content has changed since
  kUnreadable,  ///< may be complete: the system refuses access, or its format is newer than this program
};

struct TornCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
  std::string reason;  ///< why it is not a complete checkpoint
  Tear tear = Tear::kUnfinished;
  ErrorKind kind = ErrorKind::kCheckpoint;  ///< kind of an error that gives the reason
};

struct FoundCheckpoints {
  std::vector<CompleteCheckpoint> complete;  ///< sorted by step, oldest first
  std::vector<TornCheckpoint> torn;
};

/// Why the folder is not a complete checkpoint. "" if its manifest is valid and the files that it lists exist
/// with the listed sizes. Hashes are not compared.
std::string incompleteness(const std::filesystem::path& folder);

/// All step folders in a run's output folder. None if the output folder does not exist.
FoundCheckpoints find_checkpoints(const std::filesystem::path& root);

/// The complete checkpoints that prune() keeps.
struct Retention {
  int64_t keep_last = 0;                 ///< number of newest checkpoints to keep; 0: all
  int64_t keep_every = 0;                ///< also keeps checkpoints whose step is a multiple of this; 0: none
  std::vector<int64_t> keep_steps = {};  ///< also keeps the checkpoints of these steps
  /// Checkpoints of other runs are neither counted nor removed; "": all belong to one run.
  std::string run = {};
};

/// Whether a checkpoint belongs to the run. A checkpoint without an id fits every run.
inline bool is_of_run(const CompleteCheckpoint& checkpoint, const std::string& run) {
  return run.empty() || checkpoint.run.empty() || checkpoint.run == run;
}

/// Removes the complete checkpoints that are not kept, and finishes interrupted removals. A checkpoint gets a
/// hidden name first, so that a half-deleted folder is never taken for a checkpoint. Returns the removed
/// folders. Throws Error(kIo) if the system refuses.
std::vector<std::filesystem::path> prune(const std::filesystem::path& root, const Retention& retention);

struct Leftovers {
  std::vector<std::filesystem::path> removed;
  /// New names of step folders without a manifest that may have been complete.
  std::vector<std::filesystem::path> set_aside;
};

/// Removes the leftovers of killed runs from a run's output folder: interrupted removals, files under
/// temporary names, and step folders that `run` began after the newest manifest there and never finished. Any
/// other step folder without a manifest is renamed to NAME.incomplete-1, because it may be a copy under way,
/// or a checkpoint that has lost its manifest. Finished checkpoints stay, even damaged ones, for a person to
/// look at. Requires: no run writes there (RunLock). Throws Error(kIo) if the system refuses.
Leftovers remove_leftovers(const std::filesystem::path& root, const std::string& run);

/// Renames a step's folder to NAME.REASON-1, or the next free number. Readers ignore folders of such names
/// and no run removes them. Returns the new path. Throws Error(kIo) if the system refuses.
inline constexpr const char* kDamaged = "damaged";
inline constexpr const char* kIncomplete = "incomplete";
std::filesystem::path set_aside(const std::filesystem::path& folder, const char* reason);

struct ResumeChoice {
  std::optional<std::filesystem::path> folder;  ///< nothing: start anew
  std::string message;                          ///< the choice, its reason and the folders that were skipped
  /// Damaged checkpoints newer than `folder`, which the caller renames by set_aside().
  std::vector<TornCheckpoint> damaged{};
};

/// Chooses the checkpoint to resume from. `resume` is
/// - "auto": the newest complete checkpoint in `root`, else a new start. Throws Error(kCheckpoint) if there
///   were finished checkpoints and none is complete any more, if the newest belongs to another run than
///   `root` records, or if `root` records no run and holds checkpoints of several. Throws an error of its
///   kind if a newer checkpoint cannot be read, because it may be complete;
/// - "latest": the newest complete checkpoint, with the same errors. Throws Error(kCheckpoint) if there is
///   none;
/// - "never": a new start;
/// - the path of a step's folder or of another run's output folder. Throws Error(kCheckpoint) if it has no
///   complete checkpoint.
ResumeChoice resolve_resume(const std::filesystem::path& root, const std::string& resume);

/// The step folder that a user means by a path: the path itself, or the newest complete checkpoint in a run's
/// output folder. Throws Error(kCheckpoint) if the path has no complete checkpoint.
std::filesystem::path checkpoint_folder(const std::filesystem::path& path);

/// Name of the symbolic link, beside the step folders, to a run's best checkpoint. Its path is accepted
/// wherever a checkpoint's folder is.
inline constexpr const char* kBestName = "best";

/// Points the link at the folder of that step, atomically for readers. Throws Error(kIo) if the file system
/// has no links, or if the name belongs to something that is not a link.
void mark_best(const std::filesystem::path& root, int64_t step);

/// The step that the link points to. Nothing if there is no link or its target is not a complete checkpoint.
std::optional<int64_t> best_step(const std::filesystem::path& root);

inline constexpr const char* kRunLockName = ".lock";

/// The lock that rank 0 holds as long as a run may write into its output folder. The system releases it when
/// the process ends, even by a crash. The file of the lock stays.
class RunLock {
 public:
  /// Throws Error(kUsage) if another run holds the lock, and kIo if the lock's file cannot be created. On
  /// storage without locks it logs a warning and holds nothing.
  explicit RunLock(const std::filesystem::path& folder);

  /// Throws Error(kIo) if the folder's name no longer leads to the folder that was locked, because it was
  /// removed, replaced or unmounted. Another run may have locked the new folder, and a later run would not
  /// find what is written to the old one.
  void require_same_folder() const;

 private:
  std::filesystem::path path_;
  util::Descriptor file_;
};

}  // namespace fsdp::checkpoint
