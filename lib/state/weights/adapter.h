#pragma once

// Checkpoints of adapters (model/nn/lora.h), which hold these without the frozen weights of their base. state/convert/peft_folder.h
// has PEFT's form of them.

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

/// Key of Manifest::model where a checkpoint holds adapters.
inline constexpr const char* kAdapterKey = "fsdp_lora";

struct AdapterDescription {
  nn::LoraOptions lora;             ///< without targets and init_from
  std::vector<std::string> layers;  ///< that have adapters
  bool transposed = false;          ///< the weights of these layers are (GPT-2)
  std::string base;                 ///< path of the base's weights; empty: random ones
  std::string base_identity;
};

nlohmann::json adapter_json(const AdapterDescription& adapter);
/// Of a manifest's model; nothing for one that holds all weights. `where` for the message of kCheckpoint.
std::optional<AdapterDescription> described_adapter(const nlohmann::json& model, const std::string& where);

/// Of stored weights, others having another: a hash of the hashes of a checkpoint's files, or of names, shapes, types and
/// first values of all tensors.
std::string identity_of(const std::filesystem::path& weights);
/// Of the random weights that a run starts with.
std::string identity_of_random(int64_t seed);

/// kCheckpoint unless adapters of this kind can start with those `found` in `where`.
void require_same_scale(const AdapterDescription& found, const nn::LoraOptions& expected,
                        const std::string& where);
/// kCheckpoint unless adapters `found` in `where` continue in a run with `expected`.
void require_same_adapter(const AdapterDescription& found, const AdapterDescription& expected,
                          const std::string& where);

/// The weights of the base with the adapters of a checkpoint added, by the model's names and in the base's types.
/// One matrix at a time is in memory. kCheckpoint when the base is not where it was, or others are there.
std::shared_ptr<const TensorSource> merged_source(const std::filesystem::path& checkpoint_folder,
                                                  const AdapterDescription& adapter);

/// The tensors of a step's folder under their names in the model, without those of the base.
Weights stored_alone(const std::filesystem::path& checkpoint_folder);

/// Rank, scale and kind under PEFT's keys.
nlohmann::json lora_json(const nn::LoraOptions& lora);
/// Throws nlohmann::json::exception, and kCheckpoint that begins with `where` for an impossible rank.
nn::LoraOptions lora_of_json(const nlohmann::json& config, const std::string& where);

}  // namespace fsdp::checkpoint
