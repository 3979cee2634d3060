#pragma once

// The folders of a run's checkpoints: names, which ones are complete, which one to resume from, and removal.
// Nothing here is collective; in a run, rank 0 calls it and tells the others.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "util/error.h"

namespace fsdp::checkpoint {

/// "step-00000100".
std::string step_folder_name(int64_t step);

/// The step of such a name; nothing for any other name.
std::optional<int64_t> step_of_folder_name(const std::string& name);

struct CompleteCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
};

enum class Tear {
  kUnfinished,  ///< never was one
  kDamaged,     ///< was finished and is not what was written
  kUnreadable,  ///< may be one: the system refuses it, or its format is newer than this program
};

struct TornCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
  std::string reason;  ///< why it is not a checkpoint
  Tear tear = Tear::kUnfinished;
  util::ErrorKind kind = util::ErrorKind::kCheckpoint;  ///< of an error for that reason
};

struct FoundCheckpoints {
  std::vector<CompleteCheckpoint> complete;  ///< by step, oldest first
  std::vector<TornCheckpoint> torn;
};

/// Why the folder is not a complete checkpoint, or "": its manifest is valid and the files that it lists are
/// there with their sizes. Hashes are compared when files are read.
std::string incompleteness(const std::filesystem::path& folder);

/// All step folders in a run's output folder; none when it does not exist.
FoundCheckpoints find_checkpoints(const std::filesystem::path& root);

/// Which complete checkpoints stay.
struct Retention {
  int64_t keep_last = 0;                            ///< the newest so many; 0: all
  int64_t keep_every = 0;                           ///< besides, each whose step is a multiple of it; 0: none
  std::optional<int64_t> keep_step = std::nullopt;  ///< besides, that of this step
};

/// Removes the complete checkpoints that do not stay, and what an interrupted removal left. Each is renamed
/// to a hidden name first, so that a half-deleted one is never taken for a checkpoint. Returns the folders
/// removed; kIo when the system refuses.
std::vector<std::filesystem::path> prune(const std::filesystem::path& root, const Retention& retention);

/// Removes what killed runs left in a run's output folder: step folders that were never finished, removals
/// that were interrupted, files under temporary names. Finished checkpoints stay, damaged ones too: a person
/// may want to look at them. Only while no run writes there (RunLock). Returns what was removed; kIo when the
/// system refuses.
std::vector<std::filesystem::path> remove_leftovers(const std::filesystem::path& root);

struct ResumeChoice {
  std::optional<std::filesystem::path> folder;  ///< nothing: start anew
  std::string message;                          ///< what was chosen and why; names the folders passed over
  std::vector<TornCheckpoint> damaged{};        ///< newer than the folder: to be renamed by set_aside()
};

/// Which checkpoint to resume from. `resume` is "auto" (the newest complete one in `root`, else start anew;
/// kCheckpoint when some were finished there and none is complete any more, and an error of its kind when a
/// newer one cannot be read, since it may be whole),
/// "never", "latest" (the newest; kCheckpoint when there is none) or a path of a step's folder or of another
/// run's output folder (kCheckpoint when no complete checkpoint is there).
ResumeChoice resolve_resume(const std::filesystem::path& root, const std::string& resume);

/// The step folder that a user means by a path: itself, or the newest complete checkpoint in a run's output
/// folder. kCheckpoint when there is none.
std::filesystem::path checkpoint_folder(const std::filesystem::path& path);

}  // namespace fsdp::checkpoint
