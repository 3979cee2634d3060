#pragma once

// Checkpoints written by one process, from tensors that lie elsewhere on a disk: for changing the world size
// offline, for full checkpoints and for importing weights.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/model_files.h"
#include "checkpoint/weights.h"
#include "util/progress_bar.h"

namespace fsdp::checkpoint {

struct ShardedWrite {
  std::filesystem::path folder;  ///< becomes the step's folder; nothing or an empty folder may be there
  int64_t world_size = 1;        ///< files to cut the tensors into
  bool full = false;             ///< the one file of a full checkpoint (save_full.h); world_size is 1
  int64_t step = 0;
  Contents contents = Contents::kState;
  nlohmann::json training;
  nlohmann::json model;
  ModelFiles model_files{};  ///< copied along
  util::ByteProgress progress;
};

struct ShardedResult {
  std::filesystem::path folder;
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< of the tensors
};

/// Which tensor of the source becomes which of the checkpoint.
struct ShardedTensor {
  std::string source_name;
  TensorInfo info;  ///< name, shape and type in the checkpoint; floating-point values are converted
};

/// Writes the tensors, each cut evenly over the files, in slices of bounded memory. The folder appears under
/// its name only when it is complete. kCheckpoint when something is there already, kIo when writing fails.
ShardedResult write_sharded(const ShardedWrite& request, const Weights& source,
                            const std::vector<ShardedTensor>& tensors);

/// Writes a checkpoint anew as one of another world size. All hashes are compared first.
ShardedResult reshard(const std::filesystem::path& checkpoint_folder, const std::filesystem::path& output,
                      int64_t world_size, const util::ByteProgress& progress);

}  // namespace fsdp::checkpoint
