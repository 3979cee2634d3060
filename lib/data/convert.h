#pragma once

// Token files from one format to another.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/token_format.h"

namespace fsdp::data {

struct ConvertOptions {
  std::vector<std::string> inputs;  ///< joined in this order
  std::string output;               ///< an older one is replaced
  TokenFormat format = TokenFormat::kU16;
  std::optional<TokenFormat> input_format;  ///< TokenFile's `told`
  /// Where an input keeps no documents, each ends with this id; without it such an input is one document.
  std::optional<int64_t> document_separator;
};

struct ConvertReport {
  int64_t tokens = 0;
  int64_t documents = 0;  ///< meaningful where the output's format keeps them
};

/// Documents go over where both formats keep them. The output appears complete or, after an Error, not at
/// all: kUsage for options that contradict each other, kData for an input that cannot be used or an id that
/// the output cannot hold, kIo for the output. Memory stays at a few MiB.
ConvertReport convert(const ConvertOptions& options);

}  // namespace fsdp::data
