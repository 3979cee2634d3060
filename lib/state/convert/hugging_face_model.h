#pragma once

// Converts whole models between Hugging Face's folders (config.json and safetensors) and checkpoints. Both
// directions check names and shapes against the config, so that neither writes a model that would not load.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/util/progress_bar.h"
#include "state/convert/consolidate.h"
#include "state/convert/sharded_writer.h"

namespace fsdp::checkpoint {

struct ImportRequest {
  std::filesystem::path source;  ///< a safetensors or GGUF file, or a folder in Hugging Face's layout
  /// Config.json; empty: the file of that name in the folder or beside the file, or a GGUF file's metadata.
  std::filesystem::path config;
  std::filesystem::path output;  ///< the checkpoint's folder, which must not exist or be empty
  int64_t world_size = 1;
  std::optional<c10::ScalarType> dtype{};  ///< floating-point weights are cast to it; nothing: as stored
  bool saturate = false;                   ///< Weights::set_saturating()
  util::ByteProgress progress{};
};

/// Writes a checkpoint of step 0 that holds weights only. Accepts the names that match_weights() accepts
/// (state/weights/stored_model.h). Keeps the whole config, and copies the small files beside it
/// (state/description/described_model.h), or those that a GGUF file holds.
///
/// Throws Error(kCheckpoint) that lists all missing, unexpected and misshapen weights at once, or that names
/// what is wrong with the config; kIo if writing fails.
ShardedResult import_model(const ImportRequest& request);

/// Writes a folder like consolidate(), with tokenizer and generation settings, after checking the weights
/// against the checkpoint's model. Without a dtype, floating-point weights get the type of the model from
/// which the run was initialized, if there is one. Also throws Error(kCheckpoint) for a checkpoint that does
/// not describe its model.
ConsolidateResult export_model(const std::filesystem::path& checkpoint_folder,
                               const std::filesystem::path& output, const ConsolidateOptions& options);

}  // namespace fsdp::checkpoint
