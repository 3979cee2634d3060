#pragma once

// What a checkpoint or a safetensors file holds, and whether a checkpoint is undamaged.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// The result of describe(). Tensors are kept out of the JSON, where each would take many times the memory of
/// the file that describes it.
struct Description {
  nlohmann::json whole;  ///< everything but the tensors
  std::vector<TensorInfo> tensors;
};

/// For a step's folder: format, step, world_size, layout, contents, files, training, model, tensors, and
/// optimizer: {state: {tensors, bytes}}. For a safetensors file or a folder of them: format, tensors. `bytes`
/// is the sum over the tensors. For a checkpoint of torch.distributed.checkpoint: format, tensors, and `values`, the
/// keys of objects that are no tensors. kCheckpoint when there is nothing of either kind.
Description describe(const std::filesystem::path& path);

/// As one JSON object, in which each tensor has name, shape, dtype and bytes.
void write_as_json(const Description& description, std::ostream& out);

/// For people: a few lines about the whole, and the tensors as a tree by the parts of their names.
void write_as_text(const Description& description, std::ostream& out);

/// Everything that is wrong with a step's folder, one line each: the manifest, the size and hash of every
/// file, and whether the files hold the ranges of every tensor as the manifest says. Empty when nothing is. For a
/// folder of torch.distributed.checkpoint, the first that is wrong.
std::vector<std::string> find_damage(const std::filesystem::path& folder,
                                     const util::ByteProgress& progress = {});

/// Compares the manifest of a step's folder, and those of its files whose names `takes` accepts, with what
/// the disk holds (as far as the system drops its cached copies). Returns the first damage, "" if there is
/// none; throws other errors.
std::string damage_in(const std::filesystem::path& folder,
                      const std::function<bool(const std::string& name)>& takes);

}  // namespace fsdp::checkpoint
