#pragma once

// [model] against what is written beside the weights of model.init_from.

#include <filesystem>
#include <string>
#include <vector>

#include "nn/options.h"

namespace fsdp::config {

/// Whether weights determine the key (its full name), so that another value would make another model of them:
/// sizes, biases, rotary positions, epsilons, the tied head. Others, such as dropout, are free.
bool is_determined_by_weights(const std::string& key);

struct ModelDifference {
  std::string key;            ///< full name
  std::string given, stored;  ///< as TOML
};

/// The keys that weights determine in which two models differ; those that their architecture does not have
/// count for nothing.
std::vector<ModelDifference> compare_models(const nn::ModelOptions& given, const nn::ModelOptions& stored);

/// Behind what is said of differences.
inline constexpr const char* kDifferenceRemedy =
    "leave the key out, or name other weights; to train them on as another model on purpose, begin with "
    "checkpoint.init_from (fsdp-ckpt import makes a checkpoint of a Hugging Face folder)";

/// What is to be said of a difference: both values. `where` is the file that says so of the weights.
std::string difference_text(const ModelDifference& difference, const std::string& where);

/// kCheckpoint that lists the differences from what is written beside the weights, where anything is. Reads
/// no weights.
void require_same_model(const nn::ModelOptions& given, const std::filesystem::path& weights);

}  // namespace fsdp::config
