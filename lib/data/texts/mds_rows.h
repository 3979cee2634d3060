#pragma once

// Shards of MosaicML's streaming (MDS), as MDSWriter writes them:
//
//   uint32         N: samples
//   uint32[N + 1]  offset of each sample in the file, and of the end
//   JSON           column_names, column_encodings, column_sizes (null: not the same in all samples)
//   samples        uint32 for each column without size: its bytes; then the columns' bytes

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/texts/rows.h"

namespace fsdp::data {

/// Opens a shard like open_rows(), which may be compressed as a whole. Columns of the encodings str, ndarray
/// with whole numbers, int and json become values of these kinds; a column of bytes becomes a string if it is
/// called "text", and otherwise a list of int64, as llm-foundry writes tokens. Memory: a sample, at most 256
/// MiB, and 8 bytes for each sample of the shard.
std::unique_ptr<RowFile> open_mds(const std::string& path, const std::vector<std::string>& columns);

/// Returns the shards that a folder's index.json lists, in its order; nothing if it has no index of MDS
/// shards. Throws Error(kData) for an index that cannot be used.
std::optional<std::vector<std::string>> mds_shards(const std::filesystem::path& folder);

}  // namespace fsdp::data
