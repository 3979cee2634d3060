#pragma once

// Reads a sharded checkpoint into tensors, at any world size and with any division of the tensors.

#include <filesystem>
#include <string>
#include <vector>

#include "shard/engine/tensor_slice.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {

/// Which differences between checkpoint and destinations load_slices() accepts.
struct LoadOptions {
  /// Every tensor in the checkpoint must be among the destinations, if only with an empty range.
  bool refuse_unexpected = false;
  /// Patterns (* and ?) of tensors that the checkpoint may lack; their destinations are left unchanged.
  std::vector<std::string> may_be_missing{};
  /// Patterns of tensors that may have another floating-point type in the checkpoint. Their values are rounded
  /// to the nearest of the destination's type; beside it, one slice is in memory in the checkpoint's type.
  std::vector<std::string> may_be_converted{};
};

/// Fills the destinations' data, which must be contiguous in CPU memory. Opens only the files that hold part
/// of a destination, after comparing their hashes with the manifest's. Returns the names of the tensors that
/// the checkpoint lacks and may lack.
///
/// Not collective: each rank may load its own slices alone. Throws kCheckpoint that lists the tensors that
/// are missing, unexpected or of another shape or dtype (the first of them, and how many more) before
/// anything is read; or that names the damaged file, which leaves the destinations' contents undefined.
std::vector<std::string> load_slices(const std::filesystem::path& folder, const Manifest& manifest,
                                     const std::vector<shard::TensorSlice>& destinations,
                                     const LoadOptions& options = {});

}  // namespace fsdp::checkpoint
