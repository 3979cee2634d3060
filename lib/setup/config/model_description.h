#pragma once

// The description of a model beside its weights (state/description/described_model.h): written, read, and
// compared with [model]. Hugging Face's config.json cannot describe models of plug-ins. For these it holds a
// part of a configuration under "fsdp_config", namely [model] and those keys of the plug-in that weights
// determine (nn::Architecture::keys), and the names of the shared libraries under "fsdp_plugins". A library
// is never loaded merely because a file names it.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/families/options.h"
#include "setup/config/config.h"
#include "state/description/described_model.h"

namespace fsdp::config {

/// Describes config.model by Hugging Face's keys, or a plug-in's model by the keys above.
nlohmann::json model_description(const Config& config);

/// The inverse. Throws Error(kCheckpoint) for the model of a plug-in that is not loaded.
nn::ModelOptions model_of(const checkpoint::DescribedModel& model);

/// Whether weights determine the key (its full name), because with another value they would compute something
/// else: sizes, biases, rotary positions, epsilons, the tied head. Dropout, for example, is not determined.
bool is_determined_by_weights(const std::string& key);

struct ModelDifference {
  std::string key;            ///< full name
  std::string given, stored;  ///< values as TOML
};

/// The keys that weights determine and in which two models differ, except keys that their architecture does
/// not use, and except a given number of tokens above the stored one (checkpoint::extend_vocabulary()).
std::vector<ModelDifference> compare_models(const nn::ModelOptions& given, const nn::ModelOptions& stored);

/// The remedy at the end of messages about differences.
inline constexpr const char* kDifferenceRemedy =
    "leave the key out, or choose other weights; to change the model on purpose, start "
    "from checkpoint.init_from (fsdp-ckpt import makes a checkpoint of a Hugging Face "
    "folder)";

/// The message about a difference, with both values. `where` is the file that describes the weights.
std::string difference_text(const ModelDifference& difference, const std::string& where);

/// kCheckpoint that lists the differences from the description beside the weights, if there is one. Reads no
/// weights.
void require_same_model(const nn::ModelOptions& given, const std::filesystem::path& weights);

}  // namespace fsdp::config
