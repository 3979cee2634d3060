#pragma once

// Which run a checkpoint is of. A run gets a random id at its first start, keeps it over all later starts, records it
// in its output folder (.run) and in each manifest ("run" under "training"), and leaves it in a step's folder until
// that checkpoint is complete (.unfinished). Checkpoints of before ids existed have none, which fits every run.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace fsdp::checkpoint {

inline constexpr const char* kRunName = ".run";
inline constexpr const char* kUnfinishedName = ".unfinished";

/// 16 random hexadecimal digits.
std::string new_run_id();

/// The id in "training" of a manifest; "" when it has none.
std::string run_of(const nlohmann::json& training);

/// The id that an output folder records; "" when it records none. Throws Error(kIo) when the system refuses.
std::string recorded_run(const std::filesystem::path& root);

/// Throws Error(kIo) when the system refuses.
void record_run(const std::filesystem::path& root, const std::string& run);

/// Marks a step's folder as one that this run is filling. Throws Error(kIo) when the system refuses.
void mark_unfinished(const std::filesystem::path& folder, const std::string& run);

/// Removes the mark, before the manifest completes the checkpoint.
void unmark_unfinished(const std::filesystem::path& folder);

/// The run that was filling the folder, "" for one without an id; nothing when the folder has no mark, as a complete
/// checkpoint that has lost its manifest.
std::optional<std::string> run_that_fills(const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
