#pragma once

// Writes a checkpoint from all ranks at once: sharded (a file per rank) or full (one file). The manifest
// comes last.

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

/// A checkpoint that is to be written.
struct SaveRequest {
  std::filesystem::path root;  ///< the run's output folder, shared by all ranks; gets the step's folder
  int64_t step = 0;            ///< optimizer steps done
  std::string layout;          ///< of the shards: "flat" or "per_parameter"
  nlohmann::json training{};   ///< the trainer's own: sample position, seed, ...; rank 0's counts
  nlohmann::json model{};      ///< the model's config with Hugging Face's keys; rank 0's counts
  /// The tree up which ranks report to rank 0, for several saves; made for each where there is none.
  std::shared_ptr<const comm::RankTree> tree{};
  Retention retention{};  ///< which older checkpoints stay in `root` once this one is complete
  /// Called by each rank that writes a file, in the writing thread, when the data is written under a
  /// temporary name and nothing is synced yet. May be empty.
  std::function<void()> in_the_middle{};
};

/// A complete checkpoint.
struct SavedCheckpoint {
  std::filesystem::path folder;
  std::vector<std::filesystem::path> removed{};  ///< older checkpoints; known on rank 0 only
  std::string removal_failure{};                 ///< why old ones were not removed, or ""; rank 0 only
};

/// "rank-00003.h5"; in worlds of more than 1024 ranks "ranks-01024/rank-01027.h5", as folders of so many files are slow.
std::string shard_file_name(int rank, int64_t world_size);

/// Writes the slices of this rank. The slices of all ranks together must hold every element of every tensor
/// exactly once (other replicas give empty slices); a tensor may have any number of slices. The data must be
/// contiguous in CPU memory and is written from there without a copy.
///
/// Collective. On return the checkpoint is complete and on the disk. An error is thrown on every rank, and
/// then no checkpoint of that step exists that did not exist before: kCheckpoint when a complete one exists
/// (it is never overwritten) or the slices do not add up, kIo when the disk is full or refuses. Remains of an
/// interrupted save of the same step are removed; a finished but damaged checkpoint is renamed.
SavedCheckpoint save_sharded(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                             comm::Communicator& communicator);

/// As save_sharded(), but as if a world of one had saved: the slices travel to rank 0, which writes all
/// tensors whole to one file. They travel in rounds of a few MiB per rank: beyond its own slices no rank
/// needs more than 64 MiB (in worlds of more than 64: a MiB per rank), however large units and tensors are.
/// Collective.
SavedCheckpoint save_full(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                          comm::Communicator& communicator);

/// save_sharded() beside training: a thread works with the disk, and the ranks meet only when the caller
/// asks, in the thread that issues their other collectives too. They agree by collectives rather than through
/// files because shared storage may show a new file to other nodes only seconds later, and because a failed
/// or lost rank then surfaces in the call as anywhere else.
///
/// A save has three parts, each of which begins when the previous one has ended on every rank: rank 0 creates
/// the folder; all ranks write their files; rank 0 writes the manifest and removes old checkpoints. What the manifest
/// says of the files comes to rank 0 up a tree, on which ranges that follow a rule become one, so that no rank hears of
/// each rank's.
///
/// Any collective call may throw the errors of save_sharded(); afterwards the object can only be destroyed.
class SaveUnderWay {
 public:
  /// Begins. The slices' memory must not change before the object is destroyed; see HostCopies. Not
  /// collective.
  SaveUnderWay(SaveRequest request, std::vector<shard::TensorSlice> slices, comm::Communicator& communicator);

  /// Waits for this rank's thread. A save that is not complete by then stays without a manifest.
  ~SaveUnderWay();

  /// Begins the next part if the current one has ended on every rank, without waiting for the disk: an
  /// all-reduce of eight bytes, and a few more small collectives when a part begins. True once the checkpoint
  /// is complete. Collective.
  bool advance();

  /// Waits until the checkpoint is complete. Collective.
  SavedCheckpoint finish();

 private:
  enum class Part { kFolder, kFiles, kManifest, kNone };

  void begin(Part part, std::function<void()> body);
  void begin_next();

  SaveRequest request_;
  std::filesystem::path folder_;
  std::vector<shard::TensorSlice> slices_;
  comm::Communicator& communicator_;
  Part part_ = Part::kNone;
  // Owned by the thread until the task has been joined:
  std::string report_;  ///< describes what this rank wrote; on rank 0, then all ranks
  SavedCheckpoint saved_;
  std::unique_ptr<BackgroundTask> task_;
};

}  // namespace fsdp::checkpoint
