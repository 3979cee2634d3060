#pragma once

// The weights of a sharded checkpoint as safetensors, or its weights or whole state as a full checkpoint (one
// HDF5 file), tensor by tensor in bounded memory.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "util/progress_bar.h"

namespace fsdp::checkpoint {

class ShardedSource;

struct ConsolidateOptions {
  std::optional<c10::ScalarType> dtype{};  ///< floating-point weights are cast to it; nothing: as they are
  bool ema = false;            ///< the averages of the weights in place of them, where there are any
  bool overwrite = false;      ///< safetensors only; checkpoints are never overwritten
  bool full = false;           ///< a full checkpoint in place of safetensors
  bool optimizer = false;      ///< the optimizer's state too, so that runs can resume from it; full only
  int64_t max_file_bytes = 0;  ///< safetensors in a folder: split into files of at most so much; 0: one file
  util::ByteProgress progress{};
};

struct ConsolidateResult {
  std::filesystem::path output;                 ///< a file, the index of several, or a checkpoint's folder
  std::optional<std::filesystem::path> config;  ///< Hugging Face's config.json
  std::vector<std::string> model_files{};       ///< names of tokenizer files and the like beside it
  int64_t files = 1;                            ///< with tensors in them
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< of the tensors
};

/// Safetensors have the tensors under "model/" without that prefix. An output that ends in ".safetensors" is
/// the file. Any other is a folder as Hugging Face lays it out: model.safetensors, or
/// model-00001-of-0000N.safetensors and model.safetensors.index.json, and, when the checkpoint knows
/// them, config.json and the model's small files (checkpoint/model_files.h). With `full` the output is a
/// folder too, of a checkpoint (FORMAT.md). All shards' hashes are compared first, and no more than a few
/// slices of 16 MiB are in memory.
///
/// kUsage when the options do not go together; kCheckpoint when the checkpoint is damaged, has no weights,
/// has no averages of them that are asked for, or the output is there (a folder: with something in it) and
/// `overwrite` is off; kIo when writing fails. The output appears under its name only when it is complete,
/// with `overwrite` in place of the former one (checkpoint/staged_output.h), other files of whose folder
/// stay; what a killed run left beside it is removed by the next.
ConsolidateResult consolidate(const std::filesystem::path& checkpoint_folder,
                              const std::filesystem::path& output, const ConsolidateOptions& options);

/// The weights of a checkpoint as they would be written: without prefix, after the cast, by name.
std::vector<TensorInfo> consolidated_weights(const ShardedSource& source,
                                             std::optional<c10::ScalarType> dtype);

}  // namespace fsdp::checkpoint
