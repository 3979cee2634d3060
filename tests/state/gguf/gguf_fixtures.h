#pragma once

// Models of each architecture that GGUF files have, and their weights as Hugging Face stores them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/gguf/reader.h"
#include "model/families/families.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/weights/gguf_dequantise.h"
#include "state/weights/stored_model.h"
#include "support/run_program.h"
#include "support/safetensors_files.h"
#include "support/source_folder.h"
#include "support/tiny_models.h"

namespace fsdp::testing {

inline const std::vector<std::string> kGgufModels = {"llama",
                                                     "llama3",
                                                     "linear",
                                                     "mistral",
                                                     "qwen2",
                                                     "qwen3",
                                                     "mixtral",
                                                     "qwen3_moe",
                                                     "gpt2",
                                                     "olmo2",
                                                     "smollm3",
                                                     "phi3",
                                                     "gemma2",
                                                     "gemma3_text",
                                                     "gemma3_without_windows",
                                                     "gpt_neox",
                                                     "gpt_neox_in_series",
                                                     "granite",
                                                     "olmo3",
                                                     "seed_oss",
                                                     "ernie4_5",
                                                     "glm4",
                                                     "exaone4",
                                                     "exaone4_with_windows",
                                                     "yarn",
                                                     "longrope",
                                                     "longrope_of_short_texts"};

/// Rows are blocks of quantised types.
inline nn::ModelOptions gguf_options(const std::string& name) {
  const std::string architecture = name == "gpt_neox_in_series"        ? "gpt_neox"
                                   : name == "gemma3_without_windows"  ? "gemma3_text"
                                   : name == "exaone4_with_windows"    ? "exaone4"
                                   : name == "longrope_of_short_texts" ? "longrope"
                                                                       : name;
  const bool has_own_options = nn::find_family(architecture_of(architecture)) != nullptr && name != "mistral";
  nn::ModelOptions options = has_own_options ? family_options(architecture) : tiny_options();
  options.vocab_size = 96;
  options.hidden_size = 64;
  options.intermediate_size = 96;
  options.num_hidden_layers = 2;
  options.num_attention_heads = 4;
  options.num_key_value_heads = nn::family_of(options).has("num_key_value_heads") ? 2 : 4;
  options.max_position_embeddings = 256;
  if (name == "llama3") {
    options.attention_bias = options.mlp_bias = options.tie_word_embeddings = true;
    options.head_dim = 32;
    options.rope_theta = 500000;
    options.rope_type = "llama3";
    options.rope_factor = 32;
  }
  if (name == "linear") {
    options.rope_type = "linear";
    options.rope_factor = 4;
  }
  if (name == "yarn") {
    options.head_dim = 32;
    options.rope_original_length = 64;
    options.rope_beta_fast = 32;
    options.rope_mscale = options.rope_mscale_all_dim = 0;
  }
  if (name.starts_with("longrope")) {
    options.partial_rotary_factor = 0.75;
    // llama.cpp chooses the factors by the size of its context, of which the least is 256.
    options.rope_original_length = name == "longrope" ? 32 : 256;
    options.max_position_embeddings = 2 * options.rope_original_length;
    options.rope_factor = 2;
    options.rope_short_factor = {1, 1.125, 1.5, 2, 2.5, 3};
    options.rope_long_factor = {1, 2, 4, 8, 9.5, 20};
  }
  if (name == "granite" || name.starts_with("exaone4")) {
    options.rope_theta = 500000;
    options.rope_type = "llama3";
    options.rope_factor = 16;
  }
  if (name == "granite") options.attention_bias = options.mlp_bias = true;
  if (name == "olmo3") {
    options.num_hidden_layers = 3;
    options.rope_local_base_freq = options.rope_theta;  // the only one of llama.cpp
    options.rope_original_length = 16;
  }
  if (name == "seed_oss" || name == "ernie4_5" || name == "glm4") options.head_dim = 32;
  if (name == "exaone4") options.sliding_window = options.sliding_window_pattern = 0;
  if (name == "exaone4_with_windows") {
    options.num_hidden_layers = 64;
    options.sliding_window_pattern = 3;
  }
  if (name == "mistral") {
    options.head_dim = 24;
    options.sliding_window = 128;
  }
  if (name == "qwen3_moe") {
    options.head_dim = 32;
    options.num_experts = 12;  // beyond the order of their names
    options.moe_intermediate_size = 32;
    options.norm_topk_prob = true;
    options.decoder_sparse_step = 1;
  }
  if (name == "qwen3" || name.starts_with("gemma")) {
    options.head_dim = 32;
    options.tie_word_embeddings = true;
    options.query_pre_attn_scalar = 0;
  }
  if (name == "smollm3") {
    options.num_hidden_layers = 5;
    options.no_rope_layer_interval = 4;
  }
  if (name == "phi3") {
    options.sliding_window = 128;
    options.partial_rotary_factor = 0.75;
  }
  if (name == "gemma2") options.num_hidden_layers = 3;
  if (name == "gemma3_without_windows") options.sliding_window = options.sliding_window_pattern = 0;
  if (name == "gpt_neox_in_series") {
    options.use_parallel_residual = false;
    options.partial_rotary_factor = 0.5;
  }
  if (name == "qwen2") options.qkv_bias = true;
  if (name == "gpt2") options.tie_word_embeddings = true;
  return options;
}

/// Random; vectors too, since what all models begin with would hide what is done with them.
inline std::shared_ptr<nn::Stage> gguf_model(const nn::ModelOptions& options) {
  auto model = make_initialized(options);
  at::NoGradGuard no_grad;
  for (const auto& parameter : model->named_parameters()) {
    at::Tensor tensor = parameter.value();
    // In bf16, so that 1 can be added and subtracted without rounding.
    if (tensor.dim() == 1) {
      tensor.add_(at::arange(tensor.numel(), at::kFloat).sin().mul_(0.1).to(at::kBFloat16));
    }
  }
  return model;
}

/// Each parameter under one of its names.
inline NamedTensors weights_of(const nn::Stage& model) {
  NamedTensors weights;
  std::set<const void*> seen;
  for (const auto& parameter : model.named_parameters()) {
    if (!seen.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
    weights.emplace_back(parameter.key(), parameter.value().detach().clone());
  }
  return weights;
}

/// A folder as transformers would leave it.
inline checkpoint::StoredModel write_model(const std::filesystem::path& folder,
                                           const nn::ModelOptions& options, const NamedTensors& weights) {
  std::filesystem::create_directories(folder);
  write_safetensors(folder / "model.safetensors", weights);
  std::ofstream(folder / "config.json") << checkpoint::hugging_face_config(options).dump(2);
  return checkpoint::open_model(folder);
}

/// Values of a GGUF file's tensor, by a reading of the formats that shares nothing with the library's. Types
/// that the library does not write are read by the library, which dequantise_test.cpp compares with gguf-py.
inline at::Tensor dequantised(const gguf::Reader& file, const std::string& name) {
  const gguf::Tensor& tensor = file.tensors().at(name);
  std::vector<unsigned char> bytes(static_cast<size_t>(gguf::bytes_of(tensor)));
  file.read(tensor, 0, static_cast<int64_t>(bytes.size()), bytes.data());
  at::Tensor values = at::empty(tensor.shape, at::kFloat);
  auto* out = values.mutable_data_ptr<float>();
  const auto half = [](const unsigned char* at) {
    const int bits = at[0] + 256 * at[1], exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    return bits >> 15 != 0 ? -magnitude : magnitude;
  };
  const auto single = [](uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  };
  const unsigned char* at = bytes.data();
  for (int64_t i = 0; i < values.numel();) {
    switch (static_cast<uint32_t>(tensor.type)) {
      case 0:
        out[i++] = single(at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24);
        at += 4;
        break;
      case 1:
        out[i++] = half(at);
        at += 2;
        break;
      case 30:
        out[i++] = single(at[0] << 16 | static_cast<uint32_t>(at[1]) << 24);
        at += 2;
        break;
      case 8:
        for (int j = 0; j < 32; ++j) {
          out[i++] = half(at) * static_cast<float>(static_cast<signed char>(at[2 + j]));
        }
        at += 34;
        break;
      case 2:
        for (int j = 0; j < 16; ++j) {
          out[i + j] = half(at) * static_cast<float>((at[2 + j] & 15) - 8);
          out[i + j + 16] = half(at) * static_cast<float>((at[2 + j] >> 4) - 8);
        }
        i += 32;
        at += 18;
        break;
      default:
        gguf::read_dequantised(file, tensor, 0, values.numel(), out);
        i = values.numel();
    }
  }
  return values;
}

/// The Python of FSDP_TEST_PYTHON, or python3. Empty if it lacks one of the modules.
inline std::string python_with(const std::string& modules) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  return run({"/usr/bin/env", python, "-c", "import " + modules}).exit_code == 0 ? python : "";
}
inline const std::string& python_with_gguf() {
  static const std::string found = python_with("gguf");
  return found;
}
inline const std::string& python_with_llama_cpp() {
  static const std::string found = python_with("gguf, llama_cpp");
  return found;
}

/// Bytes that are the same in every run, and in tests/state/gguf/dequantise_test.cpp those given to gguf-py.
inline std::string random_bytes(int64_t count, uint64_t seed = 42) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    bytes += static_cast<char>(seed >> 56);
  }
  return bytes;
}

/// Runs llama_cpp_reference.py and returns what it prints.
inline std::string llama_cpp(const std::string& python, const std::vector<std::string>& arguments,
                             const std::string& stdin_text = "") {
  std::vector<std::string> command = {"/usr/bin/env", python,
                                      source_folder() + "/tests/state/gguf/llama_cpp_reference.py"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const ProgramResult result = run(command, {.stdin_text = stdin_text, .timeout_seconds = 120});
  if (result.exit_code != 0) throw std::runtime_error(result.err);
  return result.out;
}

inline at::Tensor numbers_of(const std::string& text) {
  std::istringstream lines(text);
  std::vector<float> values;
  for (float value = 0; lines >> value;) values.push_back(value);
  return at::tensor(values);
}

}  // namespace fsdp::testing
