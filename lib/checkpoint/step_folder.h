#pragma once

// The folder of one step while it is being saved: made by rank 0, filled, committed by its manifest.

#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/save_request.h"
#include "comm/communicator.h"

namespace fsdp::checkpoint {

/// Makes room for the step's folder in `root` and creates it. What an unfinished save left there is removed;
/// a finished but damaged checkpoint is renamed; kCheckpoint for a complete one. Rank 0 only.
void create_step_folder(const std::filesystem::path& root, const std::filesystem::path& folder);

/// Under which a file is written.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Lets `write` finish a file under its temporary name (the argument), then hashes it, syncs it and gives it
/// its own name. After an error nothing is left of it.
FileEntry write_named(const std::filesystem::path& path,
                      const std::function<void(const std::filesystem::path&)>& write);

/// Proves that rank 0 sees a file as the rank that wrote it; kIo.
void require_visible(const std::filesystem::path& folder, const FileEntry& file);

/// Checks the manifest and writes it, which makes the checkpoint complete, then removes what
/// `request.retention` lets go; that it could not is no error. Rank 0 only.
SavedCheckpoint commit(const SaveRequest& request, Manifest manifest, const std::filesystem::path& folder);

/// Runs one part of a save and rethrows what it throws, after rank 0 has removed the unfinished folder.
/// Errors of a lost peer leave it: that rank may still be writing, and the next run removes it.
void or_remove_folder(comm::Communicator& communicator, const std::filesystem::path& folder,
                      const std::function<void()>& part);

}  // namespace fsdp::checkpoint
