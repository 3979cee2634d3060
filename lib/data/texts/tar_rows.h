#pragma once

// Archives of WebDataset: tar files whose consecutive members KEY.NAME with the same key are one sample.

#include <memory>
#include <string>
#include <vector>

#include "data/texts/rows.h"

namespace fsdp::data {

/// Opens an archive like open_rows(). A row has the `columns` that its sample has: the member KEY.COLUMN or
/// KEY.COLUMN.npy, for "text" also KEY.txt, for "tokens" also KEY.npy, or the field of that name in KEY.json.
/// A one-dimensional array of whole numbers becomes a list. Memory: the wanted members of a sample, at most
/// 256 MiB.
std::unique_ptr<RowFile> open_tar(const std::string& path, const std::vector<std::string>& columns);

}  // namespace fsdp::data
