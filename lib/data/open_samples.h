#pragma once

#include <memory>

#include "data/datasets.h"

namespace fsdp::data {

/// Opens request.entries as options.dataset says. Ids of token files are searched for ones outside the
/// vocabulary when the files total at most 1 GiB; those of other data sets are compared as rows are read.
/// Throws Error(kUsage) for an unknown data set, and Error(kData) for entries that cannot be used.
std::unique_ptr<Samples> open_samples(const SamplesRequest& request);

}  // namespace fsdp::data
