#pragma once

// Models small enough for a test, initialised from a seed.

#include <ATen/Functions.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/nn/decoder.h"
#include "model/nn/initialize.h"
#include "model/nn/loss.h"

namespace fsdp::testing {

inline nn::ModelOptions tiny_options(const std::string& architecture = "llama") {
  nn::ModelOptions options;
  options.architecture = architecture;
  options.vocab_size = 17;
  options.hidden_size = 12;
  options.intermediate_size = 20;
  options.num_hidden_layers = 3;
  options.num_attention_heads = 2;
  options.num_key_value_heads = architecture == "llama" ? 1 : 2;
  options.max_position_embeddings = 16;
  options.initializer_range = 0.2;
  return options;
}

/// Of tests over all families; "mistral" is a llama with a window, "olmo3" an olmo2 with some.
inline const std::vector<std::string>& family_names() {
  static const std::vector<std::string> names = {
      "llama",    "gpt2",        "mistral",  "qwen3",   "olmo2",     "smollm3", "phi3",
      "gemma2",   "gemma3_text", "gpt_neox", "mixtral", "qwen3_moe", "granite", "olmo3",
      "seed_oss", "ernie4_5",    "helium",   "glm4",    "exaone4"};
  return names;
}

/// Architectures of names that are not those of one.
inline std::string architecture_of(const std::string& name) {
  static const std::map<std::string, std::string> others = {{"mistral", "llama"},
                                                            {"olmo3", "olmo2"},
                                                            {"yarn", "qwen3"},
                                                            {"longrope", "phi3"},
                                                            {"dynamic", "llama"}};
  return others.contains(name) ? others.at(name) : name;
}

/// Tiny, with all that the family has; windows are shorter than 16 tokens. "yarn", "longrope" and "dynamic"
/// are models of some family with this rotary scaling, for sequences longer than 8 tokens.
inline nn::ModelOptions family_options(const std::string& name) {
  nn::ModelOptions options = tiny_options(architecture_of(name));
  options.hidden_size = 16;
  options.num_hidden_layers = 2;
  const bool has_own_keys = name == "gpt2" || name == "gpt_neox";
  options.num_key_value_heads = has_own_keys ? 2 : 1;
  if (name == "mistral" || name == "phi3") options.sliding_window = 5;
  if (name == "qwen3") options.head_dim = 12;
  if (name == "smollm3") options.no_rope_layer_interval = 2;
  if (name == "gemma2" || name == "gemma3_text") {
    options.head_dim = 12;
    options.hidden_act = nn::Activation::kGeluTanh;
    options.query_pre_attn_scalar = 20;
    options.sliding_window = 5;
    options.sliding_window_pattern = 2;
  }
  if (name == "smollm3" || name.starts_with("gemma")) options.tie_word_embeddings = true;
  if (name == "gemma2") {
    options.attn_logit_softcapping = 2;
    options.final_logit_softcapping = 3;
  }
  if (name == "gemma3_text") {
    options.rope_local_base_freq = 1e3;
    options.rope_type = "linear";
    options.rope_factor = 2;
  }
  if (name == "gpt_neox") {
    options.hidden_act = nn::Activation::kGelu;
    options.attention_bias = true;
    options.partial_rotary_factor = 0.25;
    options.use_parallel_residual = true;
  }
  if (name == "granite") {
    options.attention_multiplier = 0.3;
    options.embedding_multiplier = 3;
    options.residual_multiplier = 0.4;
    options.logits_scaling = 1.5;
  }
  if (name == "olmo3") {
    options.sliding_window = 5;
    options.sliding_window_pattern = 2;
    options.rope_local_base_freq = 1e3;
    options.rope_type = "yarn";
    options.rope_factor = 8;
    options.rope_original_length = 6;
  }
  if (name == "seed_oss" || name == "glm4") options.qkv_bias = true;
  if (name == "seed_oss" || name == "glm4" || name == "ernie4_5") options.head_dim = 12;
  if (name == "glm4") options.partial_rotary_factor = 0.5;
  if (name == "exaone4") {
    options.sliding_window = 5;
    options.sliding_window_pattern = 2;
  }
  if (name == "yarn") {
    options.head_dim = 12;
    options.rope_type = "yarn";
    options.rope_factor = 4;
    options.rope_original_length = 8;
    options.rope_beta_fast = 4;
    options.rope_mscale = 0.7;
    options.rope_mscale_all_dim = 0.2;
  }
  if (name == "longrope") {
    options.rope_type = "longrope";
    options.rope_factor = 16;
    options.rope_original_length = 8;
    options.rope_short_factor = {1, 1.1, 1.5, 2};
    options.rope_long_factor = {1.2, 2, 5, 11.5};
  }
  if (name == "dynamic") {
    options.rope_type = "dynamic";
    options.rope_factor = 3;
    options.max_position_embeddings = 8;
  }
  if (name == "mixtral") options.num_experts = 4;
  if (name == "qwen3_moe") {
    options.head_dim = 12;
    options.num_experts = 5;
    options.num_experts_per_tok = 3;
    options.moe_intermediate_size = 8;
    options.num_hidden_layers = 3;
    options.decoder_sparse_step = 2;  // dense layers too
  }
  return options;
}

inline std::shared_ptr<nn::Stage> make_initialized(const nn::ModelOptions& options, uint64_t seed = 7) {
  auto model = nn::make_decoder(options);
  nn::initialize_parameters(*model, options, seed);
  return model;
}

/// Token ids [rows, length + 1] that depend on the row's number only, so that ranks can take rows of one
/// global batch.
inline at::Tensor token_rows(int64_t first_row, int64_t rows, int64_t length, int64_t vocab_size) {
  at::Tensor row = at::arange(first_row, first_row + rows, at::kLong).unsqueeze(1);
  at::Tensor column = at::arange(length + 1, at::kLong).unsqueeze(0);
  return (row * 7 + column * column * 3 + row * column * 5 + 1).remainder(vocab_size);
}

/// Mean loss of the model on rows of token ids.
inline at::Tensor loss_of(nn::Stage& model, const at::Tensor& rows) {
  int64_t length = rows.size(1) - 1;
  return nn::next_token_loss(model.forward(rows.narrow(1, 0, length)),
                             rows.narrow(1, 1, length).contiguous());
}

/// A stage that multiplies by a matrix; the smallest thing that can be a unit.
class MatrixStage final : public nn::Stage {
 public:
  MatrixStage(int64_t in, int64_t out, std::string type = "block") : type_(std::move(type)) {
    weight_ = register_parameter("weight", at::arange(in * out, at::kFloat).view({out, in}).sin());
  }
  std::string type_name() const override { return type_; }
  at::Tensor& weight() { return weight_; }
  bool throws = false;                             ///< on the next compute
  std::function<void(const at::Tensor& x)> probe;  ///< called at the begin of compute

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override {
    if (probe) probe(x);
    if (throws) throw std::runtime_error("thrown by a test");
    return at::linear(x, weight_).tanh();
  }

 private:
  at::Tensor weight_;
  std::string type_;
};

/// `count` matrix stages of size x size in a row, with a bias of its own for the root.
/// `order`, where it is not empty, says which of them run, and when.
class ChainStage final : public nn::Stage {
 public:
  ChainStage(int64_t count, int64_t size) {
    layers_ = register_module("layers", std::make_shared<nn::StageList>());
    for (int64_t i = 0; i < count; ++i) layers_->append(std::make_shared<MatrixStage>(size, size));
    bias_ = register_parameter("bias", at::ones({size}));
  }
  std::string type_name() const override { return "chain"; }
  size_t size() const { return layers_->size(); }
  std::vector<size_t> order;
  MatrixStage& layer(size_t i) {
    return static_cast<MatrixStage&>(**(layers_->begin() + static_cast<long>(i)));
  }

 protected:
  at::Tensor compute(const at::Tensor& input, const nn::StageContext& context) override {
    at::Tensor x = input + bias_;
    if (order.empty()) {
      for (const auto& layer : *layers_) x = layer->forward(x, context);
    }
    for (size_t i : order) x = layer(i).forward(x, context);
    return x;
  }

 private:
  std::shared_ptr<nn::StageList> layers_;
  at::Tensor bias_;
};

inline void move_parameters(nn::Stage& stage, at::Device device) {
  for (const auto& parameter : stage.named_parameters()) {
    parameter.value().set_data(parameter.value().to(device));
  }
}

}  // namespace fsdp::testing
