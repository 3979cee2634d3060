#pragma once

// Writes checkpoints in one process from tensors on disk: to change the world size offline, to make full
// checkpoints and to import weights.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/description/described_model.h"
#include "state/manifest/manifest.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

struct ShardedWrite {
  std::filesystem::path folder;  ///< the step's folder, which must not exist or be empty
  int64_t world_size = 1;        ///< number of files to cut the tensors into
  bool full = false;             ///< writes a full checkpoint (one file); world_size is 1
  int64_t step = 0;
  Contents contents = Contents::kState;
  nlohmann::json training;
  nlohmann::json model;
  ModelFiles model_files{};  ///< small files to copy
  util::ByteProgress progress;
};

struct ShardedResult {
  std::filesystem::path folder;
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< bytes of the tensors
};

/// A tensor of the source, and its name, shape and type in the checkpoint.
struct ShardedTensor {
  std::string source_name;
  TensorInfo info;  ///< the tensor in the checkpoint; floating-point values are converted
};

/// Writes the tensors, each cut evenly over the files, in slices of bounded memory. The folder appears under
/// its name only when it is complete. Throws Error(kCheckpoint) if the folder exists and is not empty, kIo if
/// writing fails.
ShardedResult write_sharded(const ShardedWrite& request, const Weights& source,
                            const std::vector<ShardedTensor>& tensors);

/// Rewrites a checkpoint for another world size, after comparing all hashes.
ShardedResult reshard(const std::filesystem::path& checkpoint_folder, const std::filesystem::path& output,
                      int64_t world_size, const util::ByteProgress& progress);

}  // namespace fsdp::checkpoint
