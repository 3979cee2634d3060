#pragma once

// Small models whose weights follow a closed formula, so that tables that other programs computed
// (tests/parity) need no files of weights. The formula is in the docstring of tests/parity/trl_reference.py.

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/util/error.h"
#include "model/nn/decoder.h"
#include "state/hugging_face/hugging_face_config.h"
#include "support/safetensors_files.h"

namespace fsdp::testing {

/// The numbers u(name, i) of the formula, in [-1, 1), fp32.
inline at::Tensor formula_numbers(const std::string& name, at::IntArrayRef shape) {
  uint32_t hash = 2166136261U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  const at::Tensor numbers = at::empty(shape, at::kFloat);
  auto* first = numbers.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    uint32_t x = hash + static_cast<uint32_t>(i) * 0x9e3779b9U;
    x = (x ^ x >> 16) * 0x7feb352dU;
    x = (x ^ x >> 15) * 0x846ca68bU;
    x ^= x >> 16;
    first[i] = static_cast<float>(x >> 8) / 8388608.0F - 1.0F;
  }
  return numbers;
}

/// The weights of a model, or of the reference model of the same kind.
inline NamedTensors formula_weights(const nn::ModelOptions& options, bool of_reference = false) {
  NamedTensors weights;
  const auto model = nn::make_decoder(options, at::kMeta);
  for (const auto& parameter : model->named_parameters()) {
    at::Tensor values = formula_numbers(parameter.key(), parameter.value().sizes()) / 4;
    if (values.dim() == 1) values += 1;
    if (of_reference) values += formula_numbers("reference." + parameter.key(), values.sizes()) / 16;
    weights.emplace_back(parameter.key(), values);
  }
  return weights;
}

/// The config.json of a kind of trl_reference.py, "llama" or "qwen3".
inline nlohmann::json formula_config(const std::string& kind) {
  FSDP_CHECK(kind == "llama" || kind == "qwen3", kind);
  nlohmann::json config = {{"model_type", kind},
                           {"vocab_size", 128},
                           {"hidden_size", 48},
                           {"intermediate_size", 80},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"max_position_embeddings", 128},
                           {"tie_word_embeddings", false},
                           {"torch_dtype", "float32"}};
  config["head_dim"] = kind == "llama" ? 12 : 16;
  config["rms_norm_eps"] = kind == "llama" ? 1e-5 : 1e-6;
  return config;
}

/// Writes a model of this kind as a folder in Hugging Face's layout. Returns the folder.
inline std::filesystem::path write_formula_model(const std::filesystem::path& folder, const std::string& kind,
                                                 bool of_reference = false) {
  const nlohmann::json config = formula_config(kind);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(2);
  write_safetensors(folder / "model.safetensors",
                    formula_weights(checkpoint::options_from_hugging_face(config, kind), of_reference));
  return folder;
}

}  // namespace fsdp::testing
