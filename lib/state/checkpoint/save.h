#pragma once

// Writes a checkpoint from all ranks at once: sharded (a file per rank) or full (one file). The manifest is
// written last.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/api/rank_tree.h"
#include "shard/engine/tensor_slice.h"
#include "state/checkpoint/background_task.h"
#include "state/manifest/folders.h"

namespace fsdp::checkpoint {

/// A checkpoint to write.
struct SaveRequest {
  /// The run's output folder, shared by all ranks, in which the step's folder is created.
  std::filesystem::path root;
  int64_t step = 0;           ///< optimizer steps done
  std::string layout;         ///< layout of the shards: "flat" or "per_parameter"
  nlohmann::json training{};  ///< the trainer's state: sample position, seed, ...; read on rank 0
  nlohmann::json model{};     ///< the model's config with Hugging Face's keys; read on rank 0
  /// The tree along which ranks report to rank 0, shared by several saves. Null: each save makes a tree.
  std::shared_ptr<const comm::RankTree> tree{};
  Retention retention{};  ///< older checkpoints that stay in `root` once the new checkpoint is complete
  /// Called in the saving thread before the slices are read, which are complete when it returns. May be
  /// empty.
  std::function<void()> complete_slices{};
  /// Called in the writing thread of each rank that writes a file, between writing the data under a temporary
  /// name and syncing it. May be empty.
  std::function<void()> in_the_middle{};
};

/// A complete checkpoint.
struct SavedCheckpoint {
  std::filesystem::path folder;
  std::vector<std::filesystem::path> removed{};  ///< older checkpoints that were removed; set on rank 0 only
  std::string removal_failure{};  ///< why older checkpoints were not removed, or ""; set on rank 0 only
};

/// The name of a rank's file: "rank-00003.h5". In worlds of more than 1024 ranks "ranks-01024/rank-01027.h5",
/// because folders of so many files are slow.
std::string shard_file_name(int rank, int64_t world_size);

/// Writes the slices of this rank. The slices of all ranks together must hold every element of every tensor
/// exactly once (other replicas give empty slices). A tensor may have any number of slices. The data must be
/// contiguous in CPU memory and is written without a copy.
///
/// Collective. On return the checkpoint is complete and on the disk. Throws the failure of an earlier
/// collective of a device (Communicator::check()). Other errors are thrown on every rank. All leave no new
/// checkpoint of that step: kCheckpoint if a complete checkpoint exists (it is never
/// overwritten) or the slices do not add up, kIo if the disk is full or refuses. Removes leftovers of an
/// interrupted save of the same step, and renames a finished but damaged checkpoint.
SavedCheckpoint save_sharded(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                             comm::Communicator& communicator);

/// Like save_sharded(), but writes what a world of one would: the slices are sent to rank 0, which writes all
/// tensors whole to one file. They are sent in rounds of a few MiB per rank. Beside its own slices, a rank
/// needs at most 64 MiB (in worlds of more than 64 ranks: 1 MiB per rank), for units and tensors of any size.
/// Collective.
SavedCheckpoint save_full(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                          comm::Communicator& communicator);

/// save_sharded() while training continues. A background thread writes to the disk. Collectives are issued
/// only in calls of this object, by the thread that also issues the ranks' other collectives. Ranks agree by
/// collectives rather than through files, because shared storage may show a new file to other nodes only
/// seconds later, and because the call then reports a failed or lost rank like any other collective.
///
/// A save has three parts, each of which begins when the previous part has ended on every rank: rank 0
/// creates the folder; all ranks write their files; rank 0 writes the manifest and removes old checkpoints.
/// Descriptions of the files are sent to rank 0 along a tree. Each rank of the tree joins regular ranges, so
/// that no rank receives one description per rank.
///
/// Any collective call may throw the errors of save_sharded(). Afterwards the object can only be destroyed.
class SaveUnderWay {
 public:
  /// Begins the save. The slices' memory must not change before the object is destroyed (see HostCopies). Not
  /// collective.
  SaveUnderWay(SaveRequest request, std::vector<shard::TensorSlice> slices, comm::Communicator& communicator);

  /// Waits for this rank's thread. An incomplete save stays without a manifest.
  ~SaveUnderWay();

  /// Begins the next part if the current part has ended on every rank, without waiting for the disk. Returns
  /// whether the checkpoint is complete. Collective: an all-reduce of eight bytes, and a few more small
  /// collectives when a part begins.
  bool advance();

  /// Waits until the checkpoint is complete. Collective.
  SavedCheckpoint finish();

 private:
  enum class SavePart { kFolder, kFiles, kManifest, kNone };

  void begin(SavePart part, std::function<void()> body);
  void begin_next();

  SaveRequest request_;
  std::filesystem::path folder_;
  std::vector<shard::TensorSlice> slices_;
  comm::Communicator& communicator_;
  SavePart part_ = SavePart::kNone;
  // Owned by the thread until the task has been joined:
  std::string report_;  ///< description of this rank's file; on rank 0, later of all files
  SavedCheckpoint saved_;
  std::unique_ptr<BackgroundTask> task_;
};

}  // namespace fsdp::checkpoint
