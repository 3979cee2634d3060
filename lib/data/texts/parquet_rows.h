#pragma once

// Rows of parquet tables, by libparquet.

#include <memory>
#include <string>
#include <vector>

#include "data/texts/rows.h"

namespace fsdp::data {

/// As open_rows(), for a table of any name. Row groups are read one after another, a batch of rows at a time;
/// with its decompressed pages it takes some MiB, and 512 MiB at most.
std::unique_ptr<Rows> open_parquet(const std::string& path, const std::vector<std::string>& columns);

}  // namespace fsdp::data
