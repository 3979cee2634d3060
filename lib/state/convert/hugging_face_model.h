#pragma once

// Whole models to and from Hugging Face: a folder with config.json and safetensors becomes a checkpoint, and
// a checkpoint such a folder. Both directions check names and shapes against the config, so that neither
// writes a model that would not load.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/util/progress_bar.h"
#include "state/convert/consolidate.h"
#include "state/convert/sharded_writer.h"

namespace fsdp::checkpoint {

struct ImportRequest {
  std::filesystem::path source;  ///< a safetensors file, or a folder in Hugging Face's layout
  std::filesystem::path config;  ///< config.json; empty: the one in the folder or beside the file
  std::filesystem::path output;  ///< the checkpoint's folder: must not exist, or be empty
  int64_t world_size = 1;
  std::optional<c10::ScalarType> dtype{};  ///< floating-point weights are cast to it; nothing: as stored
  bool saturate = false;                   ///< Weights::set_saturating()
  util::ByteProgress progress{};
};

/// Writes a checkpoint of step 0 that holds weights only, under the names that match_weights() accepts
/// (state/weights/stored_model.h). Keeps the whole config, and copies of the small files beside it
/// (state/hugging_face/described_model.h).
///
/// kCheckpoint that lists all missing, unexpected and misshapen weights at once, or that names what is wrong
/// with the config; kIo when writing fails.
ShardedResult import_model(const ImportRequest& request);

struct ExportRequest {
  std::filesystem::path checkpoint_folder;
  std::filesystem::path output;  ///< the folder
  /// Floating-point weights are cast to it; nothing: to the type of the model that the run was initialized
  /// from, or else as stored.
  std::optional<c10::ScalarType> dtype{};
  bool merge = false;  ///< ConsolidateOptions::merge
  bool ema = false;    ///< ConsolidateOptions::ema
  bool saturate = false;
  bool overwrite = false;
  int64_t max_file_bytes = 0;  ///< 0: one file
  util::ByteProgress progress{};
};

/// consolidate() to a folder, with tokenizer and generation settings, after the weights have been checked
/// against the checkpoint's model. kCheckpoint also for a checkpoint that does not describe its model.
ConsolidateResult export_model(const ExportRequest& request);

}  // namespace fsdp::checkpoint
