#pragma once

// The files of a folder as transformers' save_pretrained lays it out.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "checkpoint/weights_format.h"

namespace fsdp::checkpoint {

struct HuggingFaceFolder {
  std::vector<std::pair<std::string, std::vector<TensorInfo>>> files;  ///< safetensors, by name
  std::optional<nlohmann::ordered_json> index;                         ///< when there is more than one
};

/// Distributes the tensors, in their order, over files of at most `max_file_bytes` of tensors (0: one file);
/// a tensor that is larger has a file of its own.
HuggingFaceFolder plan_hugging_face_folder(const std::vector<TensorInfo>& infos, int64_t max_file_bytes);

/// Whether a file of this name is one of the safetensors files above or their index.
bool is_weights_file(const std::string& name);

/// The text of config.json: with their type ("torch_dtype") when the weights share one.
std::string config_text(nlohmann::json config, const std::vector<TensorInfo>& infos);

/// "5GB" -> 5,000,000,000, with the units of transformers: KB, MB, GB (powers of 1000), KiB, MiB, GiB, or
/// none (bytes). kUsage for anything else.
int64_t parse_size(const std::string& text);

}  // namespace fsdp::checkpoint
