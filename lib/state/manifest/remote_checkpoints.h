#pragma once

// The checkpoints of a run in a store of objects (base/objects): FOLDER/step-00000100/... A step's manifest
// is written last and removed first, so that a checkpoint with a manifest is complete. Nothing here is
// collective.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "state/manifest/folders.h"

namespace fsdp::checkpoint {

/// Returns the checkpoints with a manifest in a folder of a store, oldest first; their folders are remote
/// names, and their runs are not read. Throws Error(kIo) if the store fails.
std::vector<CompleteCheckpoint> remote_checkpoints(const std::string& folder);

/// Returns the newest checkpoint that has all files of its manifest with their sizes, and the run in its
/// manifest. `passed_over`: set to the reasons for which newer ones are not taken. `refused`: names of
/// folders to pass over.
std::optional<CompleteCheckpoint> newest_remote_checkpoint(const std::string& folder,
                                                           std::string& passed_over,
                                                           const std::set<std::string>& refused = {});

/// Removes the checkpoints that are not kept, and the objects of unfinished uploads older than the newest
/// checkpoint. Returns the removed folders' names. Throws Error(kIo) if the store fails.
std::vector<std::string> prune_remote(const std::string& folder, const Retention& retention);

}  // namespace fsdp::checkpoint
