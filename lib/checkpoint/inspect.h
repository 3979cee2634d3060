#pragma once

// What a checkpoint or a safetensors file holds, and whether a checkpoint is whole.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "util/progress_bar.h"

namespace fsdp::checkpoint {

/// For a step's folder: format, step, world_size, layout, contents, files, training, model, tensors, and
/// optimizer: {state: {tensors, bytes}}. For a safetensors file or a folder of them: format, tensors. Each
/// tensor has name, shape, dtype and bytes; `bytes` is the sum. kCheckpoint when there is nothing of either
/// kind.
nlohmann::json describe(const std::filesystem::path& path);

/// The same for people: a few lines about the whole, and the tensors as a tree.
std::string describe_as_text(const nlohmann::json& description);

/// Everything that is wrong with a step's folder, a line each; empty when it is whole: the manifest, every
/// file's size and hash, and that every tensor's ranges are in the files as the manifest says, exactly once.
std::vector<std::string> find_damage(const std::filesystem::path& folder,
                                     const util::ByteProgress& progress = {});

}  // namespace fsdp::checkpoint
