#pragma once

// The models, adapters and pairs of tests/parity/trl_reference.py, which describes them.

#include <ATen/Functions.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "base/util/file.h"
#include "data/preference_fixtures.h"
#include "support/safetensors_files.h"
#include "support/source_folder.h"

namespace fsdp::testing {

/// u(name, i) of all elements.
inline at::Tensor closed_numbers(const std::string& name, const std::vector<int64_t>& shape) {
  uint32_t begin = 2166136261U;
  for (const char byte : name) begin = (begin ^ static_cast<unsigned char>(byte)) * 16777619U;
  at::Tensor numbers = at::empty(shape, at::kFloat);
  auto* values = numbers.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    uint32_t x = begin + static_cast<uint32_t>(i) * 0x9e3779b9U;
    x = (x ^ x >> 16) * 0x7feb352dU;
    x = (x ^ x >> 15) * 0x846ca68bU;
    x ^= x >> 16;
    values[i] = static_cast<float>(x >> 8) / 8388608.0F - 1.0F;
  }
  return numbers;
}

/// A kind of model: "llama" or "qwen3".
struct TrlModel {
  explicit TrlModel(std::string kind) : kind(std::move(kind)) {}

  bool is_qwen3() const { return kind == "qwen3"; }
  int64_t head_dim() const { return is_qwen3() ? 16 : 12; }

  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes() const {
    const int64_t hidden = 48, inner = 80, vocabulary = 128, queries = 4 * head_dim(), keys = 2 * head_dim();
    std::vector<std::pair<std::string, std::vector<int64_t>>> found = {
        {"model.embed_tokens.weight", {vocabulary, hidden}},
        {"model.norm.weight", {hidden}},
        {"lm_head.weight", {vocabulary, hidden}}};
    for (int layer = 0; layer < 2; ++layer) {
      const std::string block = concat("model.layers.", layer, ".");
      const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
        found.emplace_back(block + name + ".weight", shape);
      };
      add("self_attn.q_proj", {queries, hidden});
      add("self_attn.k_proj", {keys, hidden});
      add("self_attn.v_proj", {keys, hidden});
      add("self_attn.o_proj", {hidden, queries});
      if (is_qwen3()) add("self_attn.q_norm", {head_dim()});
      if (is_qwen3()) add("self_attn.k_norm", {head_dim()});
      add("mlp.gate_proj", {inner, hidden});
      add("mlp.up_proj", {inner, hidden});
      add("mlp.down_proj", {hidden, inner});
      add("input_layernorm", {hidden});
      add("post_attention_layernorm", {hidden});
    }
    return found;
  }

  NamedTensors weights(bool of_reference) const {
    NamedTensors tensors;
    for (const auto& [name, shape] : shapes()) {
      at::Tensor weight = closed_numbers(name, shape) / 4;
      if (shape.size() == 1) weight = weight + 1;
      if (of_reference) weight = weight + closed_numbers("reference." + name, shape) / 16;
      tensors.emplace_back(name, weight);
    }
    return tensors;
  }

  /// Adapters of the queries and values, by the names of PEFT's file.
  NamedTensors adapter(bool trained) const {
    NamedTensors tensors;
    for (const auto& [name, shape] : shapes()) {
      if (name.find("q_proj") == std::string::npos && name.find("v_proj") == std::string::npos) continue;
      const std::string layer = "base_model.model." + name.substr(0, name.rfind('.'));
      const std::string a = layer + ".lora_A.weight", b = layer + ".lora_B.weight";
      tensors.emplace_back(a, closed_numbers(a, {kRank, shape[1]}) / 4);
      at::Tensor of_b = closed_numbers(b, {shape[0], kRank}) / 16;
      tensors.emplace_back(b, trained ? of_b : at::zeros_like(of_b));
    }
    return tensors;
  }

  void write_folder(const std::filesystem::path& folder, const NamedTensors& tensors) const {
    std::filesystem::create_directories(folder);
    write_text(folder / "config.json",
               concat("{\"model_type\": \"", kind, "\", \"architectures\": [\"",
                      is_qwen3() ? "Qwen3ForCausalLM" : "LlamaForCausalLM", "\"], \"head_dim\": ", head_dim(),
                      ", \"rms_norm_eps\": ", is_qwen3() ? "1e-06" : "1e-05",
                      ", \"hidden_act\": \"silu\", \"hidden_size\": 48, \"intermediate_size\": 80, "
                      "\"max_position_embeddings\": 128, \"num_attention_heads\": 4, "
                      "\"num_hidden_layers\": 2, \"num_key_value_heads\": 2, \"rope_theta\": 10000.0, "
                      "\"tie_word_embeddings\": false, \"vocab_size\": 128}"));
    write_safetensors(folder / "model.safetensors", tensors);
  }

  void write_adapter(const std::filesystem::path& folder, bool trained) const {
    std::filesystem::create_directories(folder);
    write_text(folder / "adapter_config.json",
               concat("{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": ", kRank,
                      ", \"lora_alpha\": ", 2 * kRank,
                      ", \"lora_dropout\": 0.0, \"bias\": \"none\", \"target_modules\": [\"q_proj\", "
                      "\"v_proj\"]}"));
    write_safetensors(folder / "adapter_model.safetensors", adapter(trained));
  }

  /// The weights with the trained adapter merged into them.
  NamedTensors merged() const {
    NamedTensors tensors = weights(/*of_reference=*/false);
    const NamedTensors parts = adapter(/*trained=*/true);
    for (size_t i = 0; i < parts.size(); i += 2) {
      const std::string of_peft = parts[i].first;
      const std::string prefix = "base_model.model.";
      const std::string name =
          of_peft.substr(prefix.size(), of_peft.find(".lora_A") - prefix.size()) + ".weight";
      for (auto& [own, weight] : tensors) {
        if (own == name) weight = weight + 2 * parts[i + 1].second.matmul(parts[i].second);
      }
    }
    return tensors;
  }

  /// Writes FOLDER/model, reference, merged, adapter and trained_adapter.
  void write_all(const std::filesystem::path& folder) const {
    write_folder(folder / "model", weights(/*of_reference=*/false));
    write_folder(folder / "reference", weights(/*of_reference=*/true));
    write_folder(folder / "merged", merged());
    write_adapter(folder / "adapter", /*trained=*/false);
    write_adapter(folder / "trained_adapter", /*trained=*/true);
  }

  static void write_text(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path) << text;
  }

  static constexpr int64_t kRank = 4;
  std::string kind;
};

/// The chosen and the rejected document of each pair of trl_pairs.txt, one after another.
inline std::vector<data::Answer> trl_answers() {
  std::vector<data::Answer> answers;
  std::istringstream lines(util::read_file(source_folder() + "/tests/parity/trl_pairs.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::vector<int64_t>> parts(1);
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      word == "|" ? void(parts.emplace_back()) : parts.back().push_back(std::stoll(word));
    }
    answers.push_back({parts.at(0), parts.at(1), true});
    answers.push_back({parts.at(0), parts.at(2), false});
  }
  return answers;
}

/// A config of the tables: 20 steps of 4 pairs, or with KTO of 4 rows, in the order of the file.
inline std::string trl_config(const std::filesystem::path& folder) {
  return concat(
      "[run]\noutput_dir = \"", (folder / "out").string(), "\"\n[model]\ninit_from = \"",
      (folder / "model").string(), "\"\n[data]\ntrain = [\"", (folder / "pairs.bin").string(),
      "\"]\nsequence_length = 96\nmicro_batch_size = 4\nshuffle = false\n[training]\nsteps = 20\n"
      "[optimizer]\nname = \"adamw\"\nlr = 1e-3\nbetas = [0.9, 0.999]\neps = 1e-6\nweight_decay = 0.0\n"
      "[lr_scheduler]\nname = \"constant\"\n[fsdp]\nmin_num_params = 10_000\n"
      "[checkpoint]\nsave_at_end = false\n[logging]\npeak_tflops = 1.0\n");
}

}  // namespace fsdp::testing
