#pragma once

// What a checkpoint or a safetensors file holds, and whether a checkpoint is whole.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "util/progress_bar.h"

namespace fsdp::checkpoint {

/// What describe() found. The tensors lie apart, because a structure of JSON for each of them would take many
/// times the memory of the file that describes them.
struct Description {
  nlohmann::json whole;  ///< all but the tensors
  std::vector<TensorInfo> tensors;
};

/// For a step's folder: format, step, world_size, layout, contents, files, training, model, tensors, and
/// optimizer: {state: {tensors, bytes}}. For a safetensors file or a folder of them: format, tensors. `bytes`
/// is the sum over the tensors. kCheckpoint when there is nothing of either kind.
Description describe(const std::filesystem::path& path);

/// As one JSON object, in which each tensor has name, shape, dtype and bytes.
void write_as_json(const Description& description, std::ostream& out);

/// The same for people: a few lines about the whole, and the tensors as a tree.
void write_as_text(const Description& description, std::ostream& out);

/// Everything that is wrong with a step's folder, a line each; empty when it is whole: the manifest, every
/// file's size and hash, and that every tensor's ranges are in the files as the manifest says, exactly once.
std::vector<std::string> find_damage(const std::filesystem::path& folder,
                                     const util::ByteProgress& progress = {});

}  // namespace fsdp::checkpoint
