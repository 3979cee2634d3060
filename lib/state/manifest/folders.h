#pragma once

// A run's output folder: the folders of its checkpoints (their names, which are complete, which is the best
// or the one to resume from, their removal), and its lock. Nothing here is collective; in a run, rank 0 calls
// it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/util/error.h"

namespace fsdp::checkpoint {

/// "step-00000100".
std::string step_folder_name(int64_t step);

/// The step of such a name; nothing for any other name.
std::optional<int64_t> step_of_folder_name(const std::string& name);

struct CompleteCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
  std::string run;  ///< the id of the run that wrote it (run_identity.h); "": unknown
};

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
  util::ErrorKind kind = util::ErrorKind::kCheckpoint;  ///< for an error with that reason
};

struct FoundCheckpoints {
  std::vector<CompleteCheckpoint> complete;  ///< by step, oldest first
  std::vector<TornCheckpoint> torn;
};

/// Why the folder is not a complete checkpoint. "" when its manifest is valid and the files it lists exist
/// with the listed sizes; hashes are not compared.
std::string incompleteness(const std::filesystem::path& folder);

/// All step folders in a run's output folder; none when it does not exist.
FoundCheckpoints find_checkpoints(const std::filesystem::path& root);

/// Which complete checkpoints are kept.
struct Retention {
  int64_t keep_last = 0;                            ///< number of newest ones; 0: all
  int64_t keep_every = 0;                           ///< also those whose step is a multiple; 0: none
  std::optional<int64_t> keep_step = std::nullopt;  ///< also the one of this step
  std::string run =
      {};  ///< checkpoints of other runs are neither counted nor removed; "": all are of one run
};

/// Whether a checkpoint is one of the run's own: one without an id fits every run.
inline bool is_of_run(const CompleteCheckpoint& checkpoint, const std::string& run) {
  return run.empty() || checkpoint.run.empty() || checkpoint.run == run;
}

/// Removes the complete checkpoints that are not kept, and finishes interrupted removals. Each is renamed to
/// a hidden name first, so that a half-deleted one is never taken for a checkpoint. Returns the folders
/// removed; kIo when the system refuses.
std::vector<std::filesystem::path> prune(const std::filesystem::path& root, const Retention& retention);

struct Leftovers {
  std::vector<std::filesystem::path> removed;
  /// Step folders without a manifest that may have been complete, by their new names.
  std::vector<std::filesystem::path> set_aside;
};

/// Removes what killed runs left in a run's output folder: interrupted removals, files under temporary names, and the
/// step folders that `run` began after the newest manifest there and never finished. A step folder without a manifest
/// that was not provably left so is renamed to NAME.incomplete-1: it may be a copy under way, or a checkpoint that has
/// lost its manifest. Finished checkpoints stay, even damaged ones: a person may want to look at them. Call it only
/// while no run writes there (RunLock). kIo when the system refuses.
Leftovers remove_leftovers(const std::filesystem::path& root, const std::string& run);

/// Renames a step's folder to NAME.REASON-1, or the next free number: a name that readers ignore and that no
/// run removes. Returns the new path; kIo when the system refuses.
inline constexpr const char* kDamaged = "damaged";
inline constexpr const char* kIncomplete = "incomplete";
std::filesystem::path set_aside(const std::filesystem::path& folder, const char* reason);

struct ResumeChoice {
  std::optional<std::filesystem::path> folder;  ///< nothing: start anew
  std::string message;                          ///< the choice and its reason; names the folders skipped
  std::vector<TornCheckpoint> damaged{};        ///< newer than the folder: to be renamed by set_aside()
};

/// Which checkpoint to resume from. `resume` is
/// - "auto": the newest complete one in `root`, else start anew. kCheckpoint when some were finished there
///   and none is complete any more, and when the newest is of another run than `root` records, or `root` records none
///   and holds checkpoints of several; an error of its kind when a newer one cannot be read, since it may be
///   complete;
/// - "latest": the newest, with the same refusals; kCheckpoint when there is none;
/// - "never";
/// - the path of a step's folder or of another run's output folder: kCheckpoint when no complete checkpoint
///   is there.
ResumeChoice resolve_resume(const std::filesystem::path& root, const std::string& resume);

/// The step folder that a user means by a path: the path itself, or the newest complete checkpoint in a run's
/// output folder. kCheckpoint when there is none.
std::filesystem::path checkpoint_folder(const std::filesystem::path& path);

/// The symbolic link, beside the step folders, to the best checkpoint of a run. It can be given wherever a
/// checkpoint's folder can.
inline constexpr const char* kBestName = "best";

/// Lets the link point to the folder of that step, atomically for readers. kIo when the file system has no
/// links, or when something that is not a link has the name.
void mark_best(const std::filesystem::path& root, int64_t step);

/// The step that the link points to; nothing when there is no link, or no complete checkpoint behind it.
std::optional<int64_t> best_step(const std::filesystem::path& root);

inline constexpr const char* kRunLockName = ".lock";

/// Held by rank 0 as long as a run may write into its output folder. The system releases the lock with the
/// process, however it ends; the file stays.
class RunLock {
 public:
  /// Throws kUsage when another run holds the lock, and kIo when the lock's file cannot be created. On
  /// storage without locks it warns and holds nothing.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Throws kIo when the folder of that name is no longer the one that was locked (it was removed, replaced
  /// or unmounted): another run may hold the new one, and a later run would not find what is written there.
  void require_same_folder() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace fsdp::checkpoint
