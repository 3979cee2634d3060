#pragma once

// Reads a sharded checkpoint into tensors, at any world size and for any sharding of the tensors.

#include <filesystem>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "shard/engine/tensor_slice.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {

/// Differences between checkpoint and destinations that load_slices() accepts.
struct LoadOptions {
  /// Whether every tensor of the checkpoint must be among the destinations, possibly with an empty range.
  bool refuse_unexpected = false;
  /// Patterns (* and ?) of tensors that the checkpoint may lack. Their destinations stay unchanged.
  std::vector<std::string> may_be_missing{};
  /// Patterns of tensors that may have another floating-point type in the checkpoint. Their values are
  /// rounded to the nearest value of the destination's type. One slice at a time is also in memory in the
  /// checkpoint's type.
  std::vector<std::string> may_be_converted{};
  util::ByteProgress progress{};
};

/// Fills the destinations' data, which must be contiguous in CPU memory. Opens only the files that hold part
/// of a destination, after comparing their hashes with the manifest's. Returns the names of missing tensors
/// that may be missing.
///
/// Not collective: each rank may load its own slices alone. Before reading, throws Error(kCheckpoint) that
/// lists tensors that are missing, unexpected or of another shape or dtype (the first of them, and how many
/// more). While reading, throws Error(kCheckpoint) that names a damaged file, which leaves the destinations
/// undefined.
std::vector<std::string> load_slices(const std::filesystem::path& folder, const Manifest& manifest,
                                     const std::vector<shard::TensorSlice>& destinations,
                                     const LoadOptions& options = {});

}  // namespace fsdp::checkpoint
