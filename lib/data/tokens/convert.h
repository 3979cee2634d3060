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
  std::string output;               ///< path of the result; replaces an older file
  TokenFormat format = TokenFormat::kU16;
  std::optional<TokenFormat> input_format = std::nullopt;  ///< format that the inputs must have; nothing: any
  /// The token that ends each document of inputs without recorded documents; nothing: each is one document.
  std::optional<int64_t> document_separator = std::nullopt;
};

struct ConvertReport {
  int64_t tokens = 0;
  int64_t documents = 0;  ///< meaningful if the output's format records documents
};

/// Converts token files. Documents are preserved if both formats record them. The output appears complete or,
/// after an Error, not at all. Throws Error(kUsage) for options that contradict each other, Error(kData) for
/// an input that cannot be used or an id that the output cannot hold, Error(kIo) for the output. Memory stays
/// at a few MiB.
ConvertReport convert(const ConvertOptions& options);

}  // namespace fsdp::data
