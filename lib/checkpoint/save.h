#pragma once

// Writes a sharded checkpoint: all ranks at once, each its own file, the manifest last.

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/background_task.h"
#include "checkpoint/save_request.h"
#include "comm/communicator.h"
#include "shard/tensor_slice.h"

namespace fsdp::checkpoint {

/// "rank-00003.h5".
std::string shard_file_name(int rank);

/// Writes what this rank holds; together the ranks' slices must hold every element of every tensor exactly
/// once (a replica gives empty slices), in any number of slices of a tensor. The tensors lie contiguous in
/// CPU memory and are written from there without a copy.
///
/// Collective. When it returns, the checkpoint is complete and on the disk; when it throws, it does so on
/// every rank, and no checkpoint of that step is there that was not there before: kCheckpoint when a complete
/// one is there already (it is never overwritten) or the slices do not add up, kIo when the disk is full or
/// refuses. What an interrupted save of the same step left is removed; a finished but damaged one is renamed.
SavedCheckpoint save_sharded(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                             comm::Communicator& communicator);

/// The same beside training: a thread works with the disk, and the ranks meet only when the caller asks, in
/// the thread that issues their other collectives too. They agree by collectives and not through files, since
/// shared storage may show a new file to other nodes only seconds later, and since a rank that fails or is
/// lost then comes out of the call like everywhere else.
///
/// It has three parts, each of which begins when the one before it has ended on every rank: rank 0 makes the
/// folder, all ranks write their files, rank 0 writes the manifest and removes old checkpoints.
///
/// Errors are those of save_sharded(), out of any collective call. After one the object can only be
/// destroyed.
class SaveUnderWay {
 public:
  /// Begins. The slices' memory must not change before the object is gone; see HostCopies. Not collective.
  SaveUnderWay(SaveRequest request, std::vector<shard::TensorSlice> slices, comm::Communicator& communicator);

  /// Waits for this rank's thread. What is not complete by then stays without a manifest: no checkpoint.
  ~SaveUnderWay();

  /// Begins the next part if the one under way has ended on every rank, without waiting for the disk: an
  /// all-reduce of eight bytes, and when a part begins a few more small collectives. True once the checkpoint
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
  // The thread's until the task has been joined:
  nlohmann::json report_;  ///< of what this rank wrote
  SavedCheckpoint saved_;
  std::unique_ptr<BackgroundTask> task_;
};

}  // namespace fsdp::checkpoint
