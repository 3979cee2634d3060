#pragma once

// Rows of parquet tables, read by libparquet.

#include <memory>
#include <string>
#include <vector>

#include "data/texts/rows.h"

namespace fsdp::data {

/// Opens a table of any name like open_rows(). Row groups are read one after another, a batch of rows at a
/// time. A batch with its decompressed pages takes some MiB, at most 512 MiB.
std::unique_ptr<RowFile> open_parquet(const std::string& path, const std::vector<std::string>& columns);

}  // namespace fsdp::data
