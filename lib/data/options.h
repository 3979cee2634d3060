#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "util/enum_names.h"
#include "util/plugin_values.h"

namespace fsdp::data {

/// What samples make of the documents in token files (sample_reader.h).
enum class DocumentTreatment {
  kJoin,   ///< they take no notice of them
  kMask,   ///< attention stays inside documents
  kSplit,  ///< a sample is of one document
};
constexpr auto enum_names(DocumentTreatment) {
  return std::to_array<util::EnumName<DocumentTreatment>>({{DocumentTreatment::kJoin, "join"},
                                                           {DocumentTreatment::kMask, "mask"},
                                                           {DocumentTreatment::kSplit, "split"}});
}

struct DataOptions {
  std::string dataset = "token_files";  ///< of datasets() (data/datasets.h): what opens `train`
  /// Token files or patterns of them, read as if all were joined; of another data set what that opens.
  std::vector<std::string> train;
  /// One for each of `train`, which are sets of their own then: the shares of their samples. Empty: one set.
  std::vector<double> train_weights;
  std::vector<std::string> validation;  ///< token files or patterns; empty: no validation
  std::string tokenizer = "bytes";      ///< what the tokens are; batches do not depend on it
  int64_t sequence_length = 256;        ///< T: tokens a sample; the sample also reads the token after
  int64_t micro_batch_size = 4;         ///< B: sequences a rank a micro-batch
  bool shuffle = true;
  util::Named<DocumentTreatment> documents = DocumentTreatment::kJoin;
  /// The token that ends a document, for files without an index of them; -1: the tokenizer's end of text.
  int64_t document_separator = -1;
  bool allow_changed = false;    ///< resume although the files are not those of the checkpoint
  int64_t prefetch_batches = 2;  ///< made ahead by a thread; 0: none
  util::PluginValues plugin_values = {};
};

}  // namespace fsdp::data
