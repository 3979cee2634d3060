#pragma once

// Conversion of token files between formats.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokens/token_format.h"

namespace fsdp::data {

struct ConvertOptions {
  std::vector<std::string> inputs;  ///< joined in this order
  std::string output;               ///< an older one is replaced
  TokenFormat format = TokenFormat::kU16;
  std::optional<TokenFormat> input_format = std::nullopt;  ///< TokenFile's `expected`
  /// Ends each document of inputs whose format does not record documents; without it, such an input is one.
  std::optional<int64_t> document_separator = std::nullopt;
};

struct ConvertReport {
  int64_t tokens = 0;
  int64_t documents = 0;  ///< meaningful where the output's format records them
};

/// Documents are preserved where both formats record them. The output appears complete or, after an Error,
/// not at all: kUsage for options that contradict each other, kData for an input that cannot be used or an id
/// that the output cannot hold, kIo for the output. Memory stays at a few MiB.
ConvertReport convert(const ConvertOptions& options);

}  // namespace fsdp::data
