#pragma once

// The best checkpoint of a run: a symbolic link "best" to its step folder, beside it. Whatever takes a
// checkpoint's folder takes the link. Nothing here is collective; in a run, rank 0 calls it.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace fsdp::checkpoint {

inline constexpr const char* kBestName = "best";

/// Lets the link point to the folder of that step, in one step for whoever reads it. kIo when the file system
/// has no links, or when something else has the name.
void mark_best(const std::filesystem::path& root, int64_t step);

/// The step that the link points to; nothing when there is none, or when it is not a complete checkpoint.
std::optional<int64_t> best_step(const std::filesystem::path& root);

}  // namespace fsdp::checkpoint
