#pragma once

#include <filesystem>
#include <optional>

namespace fsdp::checkpoint {

/// Returns a path at which weights can be read: the path itself, or a copy (base/objects/local_copy.h) if it
/// is the name of objects in a store. The name of a checkpoint there, or of a run's folder with checkpoints,
/// of which the newest complete one is meant, stays a name: its files are copied when they are read. Throws
/// Error(kData) if there is no such object, kIo if the store fails. Not collective.
std::filesystem::path local_weights(const std::filesystem::path& path);

/// Returns the name of the checkpoint that a name in a store means; nothing for paths and for other weights.
std::optional<std::filesystem::path> remote_checkpoint(const std::filesystem::path& path);

/// Whether local_weights() has returned the name of a checkpoint in a store.
bool is_remote_checkpoint(const std::filesystem::path& path);

}  // namespace fsdp::checkpoint
