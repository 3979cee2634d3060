#pragma once

// What data.dataset can be: how the entries of data.train and data.validation become samples.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/options.h"
#include "data/samples.h"
#include "util/registry.h"

namespace fsdp::data {

/// What a data set is asked to open.
struct SamplesRequest {
  std::vector<std::string> entries;  ///< of data.train or data.validation, as the config gives them
  DataOptions options;
  int64_t vocab_size = 0;
};

/// Throws Error(kData) for entries that cannot be used.
using OpenSamples = std::function<std::unique_ptr<Samples>(const SamplesRequest&)>;

/// The built-in data set: token files, or patterns of them. Its function is null, since it needs libtorch.
inline constexpr const char* kTokenFiles = "token_files";

util::Registry<OpenSamples>& datasets();

}  // namespace fsdp::data
