#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/util/enum_names.h"
#include "base/util/plugin_values.h"

namespace fsdp::data {

/// How samples treat the documents in token files (sample_reader.h).
enum class DocumentTreatment {
  kJoin,   ///< ignore them
  kMask,   ///< attention stays inside documents
  kSplit,  ///< a sample is of one document
};
constexpr auto enum_names(DocumentTreatment) {
  return std::to_array<util::EnumName<DocumentTreatment>>({{DocumentTreatment::kJoin, "join"},
                                                           {DocumentTreatment::kMask, "mask"},
                                                           {DocumentTreatment::kSplit, "split"}});
}

/// The targets that the loss counts in token files of conversations (token_turns.h).
enum class TrainOn {
  kAll,
  kAssistant,  ///< the assistant's tokens
  kLast,       ///< those of its last turn in each conversation
};
constexpr auto enum_names(TrainOn) {
  return std::to_array<util::EnumName<TrainOn>>(
      {{TrainOn::kAll, "all"}, {TrainOn::kAssistant, "assistant"}, {TrainOn::kLast, "last"}});
}

struct DataOptions {
  std::string dataset = "token_files";  ///< in datasets() (data/options/datasets.h)
  /// Token files or patterns of them, read as if all were joined; for another data set, what it opens.
  std::vector<std::string> train;
  /// The share of samples of each of `train`, each of which is a separate set then. Empty: one set.
  std::vector<double> train_weights;
  std::vector<std::string> validation;  ///< token files or patterns; empty: no validation
  std::string tokenizer = "bytes";      ///< of the tokens; batches do not depend on it
  int64_t sequence_length = 256;        ///< T: tokens per sample, which also reads the next one
  int64_t micro_batch_size = 4;         ///< B: sequences per rank and micro-batch
  /// Above 0: training micro-batches have as many rows of like length as fit into this many tokens
  /// (token_batches.h), instead of micro_batch_size rows of T.
  int64_t max_tokens = 0;
  bool shuffle = true;
  util::Named<DocumentTreatment> documents = DocumentTreatment::kJoin;
  /// The token that ends a document, for files without an index of them; -1: the tokenizer's end of text.
  int64_t document_separator = -1;
  util::Named<TrainOn> train_on = TrainOn::kAll;
  bool allow_changed = false;    ///< resume with files that differ from the checkpoint's
  int64_t prefetch_batches = 2;  ///< prefetched by a thread, one of them to the device; 0: none
  util::PluginValues plugin_values = {};
};

/// Positions of a run that a micro-batch takes.
inline int64_t samples_at_once(const DataOptions& options) {
  return options.max_tokens > 0 ? 1 : options.micro_batch_size;
}

}  // namespace fsdp::data
