#pragma once

// Writes the weights of a sharded checkpoint as safetensors, or its weights or whole state as a full
// checkpoint (one HDF5 file), tensor by tensor in bounded memory.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

class ShardedSource;

struct ConsolidateOptions {
  std::optional<c10::ScalarType> dtype{};  ///< floating-point weights are cast to it; nothing: as stored
  bool merge = false;          ///< merges adapters into the weights of their base; not with `full`
  bool ema = false;            ///< writes the averages of weights instead of the weights, if there are any
  bool saturate = false;       ///< Weights::set_saturating()
  bool overwrite = false;      ///< replaces safetensors; checkpoints are never overwritten
  bool full = false;           ///< writes a full checkpoint instead of safetensors
  bool optimizer = false;      ///< also writes the optimizer's state, so that runs can resume; `full` only
  int64_t max_file_bytes = 0;  ///< most bytes of a file of safetensors in a folder; 0: one file
  util::ByteProgress progress{};
};

struct ConsolidateResult {
  std::filesystem::path output;                 ///< a file, the index of several, or a checkpoint's folder
  std::optional<std::filesystem::path> config;  ///< Hugging Face's config.json
  std::vector<std::string> model_files{};       ///< names of the tokenizer files and the like beside it
  int64_t files = 1;                            ///< number of files with tensors
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< bytes of the tensors
};

/// Consolidates a checkpoint. Safetensors get the tensors under "model/", without that prefix. An output that
/// ends in ".safetensors" is one file. Any other output is a folder in Hugging Face's layout:
/// model.safetensors, or model-00001-of-0000N.safetensors and model.safetensors.index.json, and, if the
/// checkpoint has them, config.json and the model's small files (state/description/described_model.h). With
/// `full` the output is the folder of a checkpoint (FORMAT.md). The hashes of all shards are verified first.
/// At most a few slices of 16 MiB are in memory.
///
/// Throws Error(kUsage) if options exclude each other, kCheckpoint if the checkpoint is damaged or lacks
/// weights or the requested averages, or if the output exists (as a file or a folder that is not empty) and
/// `overwrite` is off, and kIo if writing fails. The output appears under its name only when it is complete.
/// With `overwrite` it replaces the old output (state/manifest/staged_output.h), whose folder keeps its other
/// files. The next run removes leftovers of a killed run beside the output.
ConsolidateResult consolidate(const std::filesystem::path& checkpoint_folder,
                              const std::filesystem::path& output, const ConsolidateOptions& options);

/// The weights of a checkpoint as consolidate() writes them: without prefix, after the cast, sorted by name.
std::vector<TensorInfo> consolidated_weights(const ShardedSource& source,
                                             std::optional<c10::ScalarType> dtype);

/// Like consolidated_weights(), for weights without a prefix.
std::vector<TensorInfo> weights_of_type(const Weights& weights, std::optional<c10::ScalarType> dtype);

/// The files of a folder in the layout of transformers' save_pretrained().
struct HuggingFaceFolder {
  /// Files of safetensors, sorted by name.
  std::vector<std::pair<std::string, std::vector<TensorInfo>>> files;
  std::optional<nlohmann::ordered_json> index;  ///< index, if there are several files
};

/// Distributes the tensors, in their order, over files of at most `max_file_bytes` of tensors (0: one file).
/// A larger tensor gets a file of its own.
HuggingFaceFolder plan_hugging_face_folder(const std::vector<TensorInfo>& infos, int64_t max_file_bytes);

/// Whether a file of this name is one of the safetensors files above or their index.
bool is_weights_file(const std::string& name);

/// The text of config.json. Sets "torch_dtype" if all weights have one type.
std::string config_text(nlohmann::json config, const std::vector<TensorInfo>& infos);

/// Parses a size: "5GB" -> 5,000,000,000. Units are those of transformers: KB, MB, GB (powers of 1000), KiB,
/// MiB, GiB, or none (bytes). Throws Error(kUsage) for anything else.
int64_t parse_size(const std::string& text);

}  // namespace fsdp::checkpoint
