#pragma once

// A model as a GGUF file for llama.cpp, with its tokenizer.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/gguf/format.h"
#include "base/util/progress_bar.h"
#include "state/weights/stored_model.h"

namespace fsdp::gguf {

/// Name for no tokenizer: llama.cpp computes with such a file, but knows no texts.
inline constexpr const char* kNoTokenizer = "none";

/// Value of the key for the vocabulary in a file without one.
inline constexpr const char* kWithoutVocabulary = "no_vocab";

struct ExportRequest {
  std::filesystem::path output;  ///< the file
  /// Type of matrices; vectors and positions are in f32. Nothing: the type that the model's config names, or
  /// that all weights have.
  std::optional<TensorType> type{};
  std::string tokenizer = kNoTokenizer;  ///< argument of data::make_tokenizer(), or kNoTokenizer
  bool saturate = false;                 ///< values that f16 cannot hold become the largest
  bool overwrite = false;
  util::ByteProgress progress{};
};

struct ExportResult {
  std::filesystem::path output;
  TensorType type = TensorType::kF32;
  std::string tokenizer;  ///< the kind of vocabulary that was written, llama.cpp's name for it
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< size of the file
};

/// Weights are named, ordered and, where the architecture wants it, permuted as by llama.cpp's converter. A
/// matrix whose rows are no multiple of 32 cannot be quantised, and is in f16. With q4_0, the matrix that
/// makes the logits is in q8_0. The hashes of a checkpoint are verified first. Memory is bounded by the
/// largest permuted matrix.
///
/// Throws Error(kUsage) when llama.cpp cannot compute the model or has no such tokenizer; kCheckpoint when
/// the checkpoint is damaged, values do not fit the type, or the output exists and `overwrite` is off; kIo
/// when writing fails. The file appears under its name only when it is complete.
ExportResult export_model(const checkpoint::StoredModel& model, const ExportRequest& request);

}  // namespace fsdp::gguf
