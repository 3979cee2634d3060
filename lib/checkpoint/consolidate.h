#pragma once

// The weights of a sharded checkpoint as one safetensors file, tensor by tensor in bounded memory.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace fsdp::checkpoint {

struct ConsolidateOptions {
  std::optional<c10::ScalarType> dtype;  ///< floating-point weights are cast to it; nothing: as they are
  bool overwrite = false;
};

struct ConsolidateResult {
  std::filesystem::path weights;
  std::optional<std::filesystem::path> config;  ///< Hugging Face's config.json
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< of the tensors
};

/// Writes the tensors under "model/" without that prefix. An output that ends in ".safetensors" is the file;
/// any other is a folder that gets model.safetensors and, when the checkpoint knows the model's config,
/// config.json. All shards' hashes are compared first, and no more than a few slices of 16 MiB are in memory.
///
/// kCheckpoint when the checkpoint is damaged, has no weights, or the output is there and `overwrite` is off;
/// kIo when writing fails. The output appears under its name only when it is complete.
ConsolidateResult consolidate(const std::filesystem::path& checkpoint_folder,
                              const std::filesystem::path& output, const ConsolidateOptions& options);

}  // namespace fsdp::checkpoint
