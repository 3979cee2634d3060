#pragma once

// Lists the content of checkpoints and safetensors files, and checks checkpoints for damage.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// The result of describe(). The JSON does not hold the tensors, because they would take many times the
/// memory of the file that describes them.
struct CheckpointDescription {
  nlohmann::json whole;  ///< everything except the tensors
  std::vector<TensorInfo> tensors;
};

/// Describes a path. Keys for a step's folder: format, step, world_size, layout, contents, files, training,
/// model, tensors, and optimizer: {state: {tensors, bytes}}, where `bytes` is the sum over the tensors. Keys
/// for a safetensors file or a folder of them: format, tensors. Keys for a checkpoint of
/// torch.distributed.checkpoint: format, tensors, and `values`, the keys of objects that are not tensors.
/// Throws Error(kCheckpoint) if the path is nothing of the kind.
CheckpointDescription describe(const std::filesystem::path& path);

/// Writes one JSON object, in which each tensor has name, shape, dtype and bytes.
void write_as_json(const CheckpointDescription& description, std::ostream& out);

/// Writes text for people: a few lines about the whole, and the tensors as a tree of the parts of their
/// names.
void write_as_text(const CheckpointDescription& description, std::ostream& out);

/// Lists all damage of a step's folder, one line each: of the manifest, of the size and hash of every file,
/// and of the ranges of tensors that the files should hold. Empty if there is no damage. Lists only the first
/// damage of a folder of torch.distributed.checkpoint.
std::vector<std::string> find_damage(const std::filesystem::path& folder,
                                     const util::ByteProgress& progress = {});

/// Reads the manifest of a step's folder, and the files whose names `takes` accepts, back from the disk (as
/// far as the system drops its cached copies) and compares them. Returns the first damage, "" if there is
/// none. Throws other errors.
std::string damage_in(const std::filesystem::path& folder,
                      const std::function<bool(const std::string& name)>& takes);

}  // namespace fsdp::checkpoint
