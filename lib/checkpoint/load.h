#pragma once

// Reads a sharded checkpoint into tensors, at any world size and in any division of the tensors.

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "shard/tensor_slice.h"

namespace fsdp::checkpoint {

/// What a load puts up with.
struct LoadOptions {
  /// Every tensor in the checkpoint must be among the destinations, if with an empty range.
  bool refuse_unexpected = false;
  /// Patterns (* and ?) of tensors that the checkpoint may lack; their destinations stay as they are.
  std::vector<std::string> may_be_missing{};
};

/// Fills the destinations' data, which lies contiguous in CPU memory. Only the files that hold part of a
/// destination are opened, after their hashes have been compared with the manifest's. Returns the names of
/// the tensors that the checkpoint lacks, as far as that is allowed.
///
/// Not collective: ranks may load apart, each its own slices. Throws kCheckpoint that tells which
/// tensors are missing, unexpected or of another shape or dtype (the first of them, and how many there are
/// besides) before anything is read; or that names the damaged file, in which case the destinations' contents
/// are undefined.
std::vector<std::string> load_slices(const std::filesystem::path& folder, const Manifest& manifest,
                                     const std::vector<shard::TensorSlice>& destinations,
                                     const LoadOptions& options = {});

}  // namespace fsdp::checkpoint
