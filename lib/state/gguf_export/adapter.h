#pragma once

// Low-rank adapters (LoRA) as a GGUF file, which llama.cpp adds to a model when it loads it (--lora).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/gguf/format.h"
#include "model/families/options.h"

namespace fsdp::gguf {

/// The product B A that is added to the linear map of a weight, after it has been multiplied by alpha / rank.
struct AdapterTensors {
  std::string weight;  ///< the model's name: "model.layers.0.self_attn.q_proj.weight"
  at::Tensor a;        ///< [rank, in]
  at::Tensor b;        ///< [out, rank], also where the weight itself is [in, out] (GPT-2)
};

struct AdapterRequest {
  std::filesystem::path output;
  nlohmann::json model_config;  ///< Hugging Face's config.json of the model, as manifests have it
  std::string where;            ///< name of that description in messages
  double alpha = 0;
  TensorType type = TensorType::kF32;  ///< f32, f16 or bf16
  bool saturate = false;               ///< values that f16 cannot hold become the largest
  bool overwrite = false;
};

struct AdapterFile {
  int64_t tensors = 0, bytes = 0;
};

/// Writes the adapters, in floats on the CPU. B is permuted as its weight is; those of experts are stacked,
/// with zeros for an expert that has none. Throws Error(kUsage) for a model that llama.cpp does not have;
/// kCheckpoint for a weight that the model does not have or that cannot have an adapter (embeddings, a tied
/// head, vectors), for shapes that do not fit it, and when the output exists and `overwrite` is off; kIo when
/// writing fails.
AdapterFile write_adapter(const AdapterRequest& request, const std::vector<AdapterTensors>& adapters);

struct AdapterExport {
  std::filesystem::path checkpoint_folder, output;
  TensorType type = TensorType::kF32;  ///< f32, f16 or bf16
  bool saturate = false;
  bool overwrite = false;
};

/// Calls write_adapter() for a checkpoint of adapters. Also throws Error(kUsage) for DoRA, which llama.cpp
/// does not have, and kCheckpoint for a checkpoint that holds all weights.
AdapterFile export_adapter(const AdapterExport& request);

}  // namespace fsdp::gguf
