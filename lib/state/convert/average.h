#pragma once

// The mean of the weights of several checkpoints, such as the last checkpoints of a run (fairseq's
// average_checkpoints.py), and other ways to make one model of several (state/convert/merge.h).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/convert/merge.h"

namespace fsdp::checkpoint {

struct AverageRequest {
  /// At least two checkpoints, run's output folders (the newest checkpoint), safetensors files or folders of
  /// them.
  std::vector<std::filesystem::path> inputs;
  /// A .safetensors file, or the folder of a new checkpoint of weights only, with the description and the
  /// small files of the first input's model.
  std::filesystem::path output;
  util::ByteProgress progress{};
  MergeOptions merge{};
  /// Model from which the inputs were tuned, for methods that need it.
  std::optional<std::filesystem::path> base{};
};

struct AverageResult {
  std::filesystem::path output;
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< bytes of the tensors
};

/// Averages the weights. Each element is computed in fp64 and rounded once, to the type that the tensor has
/// in all inputs. Optimizer state is left out. Hashes are compared before anything is read from a shard.
/// Memory is bounded.
///
/// Throws Error(kUsage) for fewer than two inputs without a base and as check_merge(), kCheckpoint if the
/// inputs differ in the names, shapes or types of their weights or in the values of integers, if an input is
/// damaged, or if the output exists, and kIo if writing fails. The output appears under its name only when it
/// is complete.
AverageResult average(const AverageRequest& request);

/// The newest `count` complete checkpoints in a run's output folder, oldest first. Throws Error(kCheckpoint)
/// if there are fewer.
std::vector<std::filesystem::path> last_checkpoints(const std::filesystem::path& run, int64_t count);

}  // namespace fsdp::checkpoint
