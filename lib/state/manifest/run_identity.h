#pragma once

// The run that a checkpoint belongs to. A run gets a random id at its first start and keeps it in later
// starts. It records the id in its output folder (.run), in each manifest ("run" under "training"), and in a
// step's folder until that checkpoint is complete (.unfinished). Checkpoints older than ids have no id and
// fit every run.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace fsdp::checkpoint {

inline constexpr const char* kRunName = ".run";
inline constexpr const char* kUnfinishedName = ".unfinished";

/// The id in "training" of a manifest. "" if it has none.
std::string run_of(const nlohmann::json& training);

/// The id that an output folder records. "" if it records none. Throws Error(kIo) if the system refuses.
std::string recorded_run(const std::filesystem::path& root);

/// Records the id in an output folder. Throws Error(kIo) if the system refuses.
void record_run(const std::filesystem::path& root, const std::string& run);

/// Marks a step's folder as being filled by this run. Throws Error(kIo) if the system refuses.
void mark_unfinished(const std::filesystem::path& folder, const std::string& run);

/// Removes the mark, before the manifest completes the checkpoint.
void unmark_unfinished(const std::filesystem::path& folder);

/// The id of the run that was filling the folder, "" for a run without an id. Nothing if the folder has no
/// mark, such as a complete checkpoint that has lost its manifest.
std::optional<std::string> run_that_fills(const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
