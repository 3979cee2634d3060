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
  kSplit,  ///< a sample has tokens of one document only
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
  kLast,       ///< the assistant's tokens in its last turn of each conversation
};
constexpr auto enum_names(TrainOn) {
  return std::to_array<util::EnumName<TrainOn>>(
      {{TrainOn::kAll, "all"}, {TrainOn::kAssistant, "assistant"}, {TrainOn::kLast, "last"}});
}

/// The rows that an objective of preferences reads (data/tokens/preference_samples.h).
enum class PreferenceRows {
  kNone,    ///< rows are texts
  kPairs,   ///< a chosen and a rejected document
  kSingle,  ///< a document that is desirable or not, and another's completion of its prompt
};

/// Rows of preferences. Set by training.objective, not by a key of [data].
struct PreferenceOptions {
  PreferenceRows rows = PreferenceRows::kNone;
  bool prompts_count = false;     ///< whether the prompts of preferred documents are targets too
  bool stored_reference = false;  ///< whether log-probabilities of a reference are read from beside the files
  /// kSingle: completions are exchanged among this many consecutive documents; 0: among all.
  int64_t exchanged_rows = 0;

  bool is_on() const { return rows != PreferenceRows::kNone; }
};

/// Stored distributions of a teacher (data/tokens/stored_teacher.h). Set by training.objective.
struct TeacherOptions {
  int64_t top_k = 0;  ///< likeliest tokens of each target; 0: none are stored
  double temperature = 1;
};

struct DataOptions {
  std::string dataset = "token_files";  ///< name in datasets() (data/options/datasets.h)
  /// Token files or patterns of them, read as if all were joined. Another data set defines its own entries.
  std::vector<std::string> train;
  /// The share of samples from each of `train`, each of which is then a separate set. Empty: one set.
  std::vector<double> train_weights;
  std::vector<std::string> validation;  ///< token files or patterns; empty: no validation
  std::string tokenizer = "bytes";      ///< tokenizer that made the tokens; batches do not depend on it
  int64_t sequence_length = 256;        ///< T: inputs per sample; a sample also has the target after them
  int64_t micro_batch_size = 4;         ///< B: sequences per rank and micro-batch
  /// If above 0, a training micro-batch has as many rows of similar length as fit into this many tokens
  /// (token_batches.h), instead of micro_batch_size rows of T.
  int64_t max_tokens = 0;
  bool shuffle = true;
  /// Texts that are tokenized while they are read (data/streams): the samples, one after another, that are
  /// shuffled among each other.
  int64_t shuffle_block_size = 8192;
  std::string text_column = "text";  ///< texts: field or column of a row that contains the document
  int64_t skip_bad = 0;              ///< texts: maximum number of unusable rows, which are left out
  int64_t cache_gib = 16;            ///< texts: limit on the tokens that are kept on the disk of each host
  std::string cache_folder;          ///< folder of these tokens. Not a key.
  util::Named<DocumentTreatment> documents = DocumentTreatment::kJoin;
  /// The token that ends a document, in files without an index; -1: the tokenizer's end-of-text token.
  int64_t document_separator = -1;
  util::Named<TrainOn> train_on = TrainOn::kAll;
  bool allow_changed = false;    ///< allows a run to resume with files that differ from the checkpoint's
  int64_t prefetch_batches = 2;  ///< batches that a thread prefetches, one of them to the device; 0: none
  util::PluginValues plugin_values = {};
  PreferenceOptions preference = {};
  TeacherOptions teacher = {};
};

/// Number of positions in the run's order of samples that a micro-batch takes.
inline int64_t samples_at_once(const DataOptions& options) {
  return options.max_tokens > 0 ? 1 : options.micro_batch_size;
}

}  // namespace fsdp::data
