#include "checkpoint/hugging_face_config.h"

#include <utility>

#include "nn/architectures.h"
#include "util/dtype.h"
#include "util/enum_names.h"
#include "util/error.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::concat;

namespace {

void update_llama(json& config, const nn::ModelOptions& options) {
  const std::string type = options.sliding_window > 0 ? "mistral" : options.qkv_bias ? "qwen2" : "llama";
  config.update({{"architectures", {causal_model_class(type)}},
                 {"model_type", type},
                 {"hidden_size", options.hidden_size},
                 {"intermediate_size", options.intermediate_size},
                 {"num_hidden_layers", options.num_hidden_layers},
                 {"num_attention_heads", options.num_attention_heads},
                 {"num_key_value_heads", options.num_key_value_heads},
                 {"max_position_embeddings", options.max_position_embeddings},
                 {"rms_norm_eps", options.rms_norm_eps},
                 {"rope_theta", options.rope_theta},
                 {"attention_dropout", options.attention_dropout},
                 {"hidden_act", util::name_of(options.hidden_act)}});
  if (options.head_dim > 0) config["head_dim"] = options.head_dim;
  if (type == "llama") {
    config["attention_bias"] = options.attention_bias;
    config["mlp_bias"] = options.mlp_bias;
  }
  if (type == "mistral") config["sliding_window"] = options.sliding_window;
  if (type == "qwen2") config["use_sliding_window"] = false;
  if (options.rope_type == nn::RopeType::kDefault) return;
  json scaling = {{"rope_type", options.rope_type.name()}, {"factor", options.rope_factor}};
  if (options.rope_type == nn::RopeType::kLlama3) {
    scaling.update({{"low_freq_factor", options.rope_low_freq_factor},
                    {"high_freq_factor", options.rope_high_freq_factor},
                    {"original_max_position_embeddings", options.rope_original_length}});
  }
  config["rope_scaling"] = scaling;
}

/// Keys of hugging_face_config() that weights do not determine.
constexpr const char* kFree[] = {"initializer_range", "attention_dropout", "attn_pdrop", "embd_pdrop",
                                 "resid_pdrop"};
constexpr const char* kIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
constexpr const char* kDtypeKeys[] = {"dtype", "torch_dtype"};

json without_free_keys(json config) {
  for (const char* key : kFree) config.erase(key);
  return config;
}

/// The source in our spelling; nothing if the model is not supported.
std::optional<json> as_ours(const json& source) {
  try {
    return hugging_face_config(options_from_hugging_face(source, "config"));
  } catch (const util::Error&) {
    return std::nullopt;
  }
}

}  // namespace

json hugging_face_config(const nn::ModelOptions& options) {
  FSDP_CHECK(nn::is_built_in_architecture(options.architecture), options.architecture);
  json config = {{"vocab_size", options.vocab_size},
                 {"initializer_range", options.initializer_range},
                 {"tie_word_embeddings", options.tie_word_embeddings},
                 {"torch_dtype", "float32"}};
  if (options.architecture == "gpt2") {
    config.update({{"architectures", {causal_model_class("gpt2")}},
                   {"model_type", "gpt2"},
                   {"n_embd", options.hidden_size},
                   {"n_inner", options.intermediate_size},
                   {"n_layer", options.num_hidden_layers},
                   {"n_head", options.num_attention_heads},
                   {"n_positions", options.max_position_embeddings},
                   {"layer_norm_epsilon", options.layer_norm_epsilon},
                   {"activation_function", "gelu_new"},
                   {"attn_pdrop", options.attention_dropout},
                   {"embd_pdrop", options.embedding_dropout},
                   {"resid_pdrop", options.hidden_dropout}});
  } else {
    update_llama(config, options);
  }
  return config;
}

std::map<std::string, std::vector<int64_t>> hugging_face_shapes(const nn::ModelOptions& options) {
  const int64_t vocabulary = options.vocab_size, hidden = options.hidden_size;
  const int64_t inner = options.intermediate_size;
  std::map<std::string, std::vector<int64_t>> shapes;
  if (!options.tie_word_embeddings) shapes["lm_head.weight"] = {vocabulary, hidden};
  if (options.architecture == "gpt2") {
    auto add = [&](const std::string& name, const std::vector<int64_t>& weight) {
      shapes[name + ".weight"] = weight;
      shapes[name + ".bias"] = {weight.back()};
    };
    shapes["transformer.wte.weight"] = {vocabulary, hidden};
    shapes["transformer.wpe.weight"] = {options.max_position_embeddings, hidden};
    add("transformer.ln_f", {hidden});
    for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
      const std::string block = concat("transformer.h.", i, ".");
      add(block + "ln_1", {hidden});
      add(block + "attn.c_attn", {hidden, 3 * hidden});
      add(block + "attn.c_proj", {hidden, hidden});
      add(block + "ln_2", {hidden});
      add(block + "mlp.c_fc", {hidden, inner});
      add(block + "mlp.c_proj", {inner, hidden});
    }
    return shapes;
  }
  const int64_t query = nn::query_width(options), key_value = nn::key_width(options);
  auto add = [&](const std::string& name, int64_t out, int64_t in, bool biased) {
    shapes[name + ".weight"] = {out, in};
    if (biased) shapes[name + ".bias"] = {out};
  };
  const bool biased = options.attention_bias || options.qkv_bias;
  shapes["model.embed_tokens.weight"] = {vocabulary, hidden};
  shapes["model.norm.weight"] = {hidden};
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    const std::string block = concat("model.layers.", i, ".");
    shapes[block + "input_layernorm.weight"] = {hidden};
    add(block + "self_attn.q_proj", query, hidden, biased);
    add(block + "self_attn.k_proj", key_value, hidden, biased);
    add(block + "self_attn.v_proj", key_value, hidden, biased);
    add(block + "self_attn.o_proj", hidden, query, options.attention_bias);
    shapes[block + "post_attention_layernorm.weight"] = {hidden};
    add(block + "mlp.gate_proj", inner, hidden, options.mlp_bias);
    add(block + "mlp.up_proj", inner, hidden, options.mlp_bias);
    add(block + "mlp.down_proj", hidden, inner, options.mlp_bias);
  }
  return shapes;
}

json inherited_config(const nn::ModelOptions& options, const json& source) {
  const json own = hugging_face_config(options);
  if (!source.is_object()) return own;
  json config = own;
  const std::optional<json> before = as_ours(source);
  if (before && without_free_keys(*before) == without_free_keys(own)) {
    config = source;
    for (const char* key : kFree) {
      if (own.contains(key)) config[key] = own[key];
    }
    // The source may be the model without its head (LlamaModel).
    config["architectures"] = {causal_model_class(config["model_type"])};
    config.erase("_name_or_path");  // the former path
    return config;
  }
  for (const char* key : kIds) {
    if (source.contains(key)) config[key] = source[key];
  }
  if (const auto dtype = dtype_of_config(source)) set_dtype(config, *dtype);
  return config;
}

const char* causal_model_class(const json& model_type) {
  constexpr std::pair<const char*, const char*> kClasses[] = {{"gpt2", "GPT2LMHeadModel"},
                                                              {"llama", "LlamaForCausalLM"},
                                                              {"mistral", "MistralForCausalLM"},
                                                              {"qwen2", "Qwen2ForCausalLM"}};
  for (const auto& [type, name] : kClasses) {
    if (model_type == type) return name;
  }
  FSDP_CHECK(false, model_type.dump());
}

std::optional<c10::ScalarType> dtype_of_config(const json& config) {
  if (!config.is_object()) return std::nullopt;
  for (const char* key : kDtypeKeys) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_string()) continue;
    using c10::ScalarType;
    for (const auto dtype : {ScalarType::Float, ScalarType::BFloat16, ScalarType::Half, ScalarType::Double}) {
      if (*found == util::dtype_name(dtype)) return dtype;
    }
  }
  return std::nullopt;
}

void set_dtype(json& config, c10::ScalarType dtype) {
  const bool has_new_key = config.contains("dtype");
  if (has_new_key) config["dtype"] = util::dtype_name(dtype);
  if (!has_new_key || config.contains("torch_dtype")) config["torch_dtype"] = util::dtype_name(dtype);
}

}  // namespace fsdp::checkpoint
