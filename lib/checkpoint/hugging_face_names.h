#pragma once

// Which stored tensor is which weight of a model, as weights are found in the wild: names without the prefix
// of the language model ("h.0.ln_1.weight"), a stored copy of a tied head, and buffers that are no weights
// (causal masks, rotary frequencies), which are left out.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "nn/options.h"

namespace fsdp::checkpoint {

/// In what stored weights differ from those of a model; each entry tells one.
struct Misfits {
  std::vector<std::string> missing, unexpected, misshapen;

  /// kCheckpoint that lists all, if there are any: `who` are the weights, `config` describes the model.
  void refuse_any(const std::string& who, const std::string& config) const;
};

void compare_shape(const std::string& name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& expected, Misfits& misfits);

/// The model's name -> the source's name, of all weights in `shapes` (hugging_face_shapes()) that the source
/// has; what it has beside them is unexpected.
std::map<std::string, std::string> match_names(const Weights& source, const nn::ModelOptions& options,
                                               const std::map<std::string, std::vector<int64_t>>& shapes,
                                               Misfits& misfits);

/// Where config.json of such weights lies: in the folder, or beside the file.
std::filesystem::path config_beside(const std::filesystem::path& weights);

/// kCheckpoint when the file is no JSON or too large for a config.
nlohmann::json read_config_json(const std::filesystem::path& path);

}  // namespace fsdp::checkpoint
