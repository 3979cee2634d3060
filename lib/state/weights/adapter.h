#pragma once

// Checkpoints of adapters (model/nn/lora.h). They hold the adapters without the frozen weights of their base.
// state/convert/peft_folder.h reads and writes adapters in PEFT's format.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/families/options.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

/// Key of Manifest::model that marks a checkpoint of adapters.
inline constexpr const char* kAdapterKey = "fsdp_lora";

struct AdapterDescription {
  nn::LoraOptions lora;             ///< without targets and init_from
  std::vector<std::string> layers;  ///< names of the layers that have adapters
  bool transposed = false;          ///< whether the weights of the layers are stored transposed (GPT-2)
  std::string base;                 ///< path of the base's weights; empty: random weights
  std::string base_identity;
};

nlohmann::json adapter_json(const AdapterDescription& adapter);
/// Reads the adapter from a manifest's model. Nothing if the checkpoint holds all weights. Throws
/// Error(kCheckpoint) that names `where` if the description is invalid.
std::optional<AdapterDescription> described_adapter(const nlohmann::json& model, const std::string& where);

/// Identity of stored weights: a hash of the hashes of a checkpoint's files, or of the names, shapes, types
/// and first values of all tensors.
std::string identity_of(const std::filesystem::path& weights);
/// Identity of the random weights with which a run starts.
std::string identity_of_random(int64_t seed);

/// Throws Error(kCheckpoint) unless adapters of the `expected` kind can start with the adapters `found` in
/// `where`.
void require_same_scale(const AdapterDescription& found, const nn::LoraOptions& expected,
                        const std::string& where);
/// Throws Error(kCheckpoint) unless a run with the `expected` adapters can continue the adapters `found` in
/// `where`.
void require_same_adapter(const AdapterDescription& found, const AdapterDescription& expected,
                          const std::string& where);

/// The weights of the base with a checkpoint's adapters added, under the model's names and in the base's
/// types. Keeps one matrix at a time in memory. Throws Error(kCheckpoint) if the base has been moved or
/// replaced.
std::shared_ptr<const TensorSource> merged_source(const std::filesystem::path& checkpoint_folder,
                                                  const AdapterDescription& adapter);

/// The tensors of a step's folder under their names in the model, without the tensors of the base.
Weights stored_alone(const std::filesystem::path& checkpoint_folder);

/// Rank, scale and kind of the adapters under PEFT's keys.
nlohmann::json lora_json(const nn::LoraOptions& lora);
/// Reads rank, scale and kind from PEFT's keys. Throws nlohmann::json::exception, and Error(kCheckpoint) that
/// begins with `where` for an impossible rank.
nn::LoraOptions lora_of_json(const nlohmann::json& config, const std::string& where);

}  // namespace fsdp::checkpoint
