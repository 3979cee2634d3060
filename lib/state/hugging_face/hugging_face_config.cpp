#include "state/hugging_face/hugging_face_config.h"

#include <utility>

#include "base/dtype/dtype.h"
#include "base/util/enum_names.h"
#include "base/util/error.h"
#include "model/families/architectures.h"
#include "model/families/families.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::concat;

namespace {

/// The "model_type" of transformers that computes what the options say.
std::string model_type_of(const nn::ModelOptions& options) {
  if (options.architecture != "llama") return options.architecture;
  return options.sliding_window > 0 ? "mistral" : options.qkv_bias ? "qwen2" : "llama";
}

json gpt2_config(const nn::ModelOptions& options) {
  return {{"n_embd", options.hidden_size},
          {"n_inner", options.intermediate_size},
          {"n_layer", options.num_hidden_layers},
          {"n_head", options.num_attention_heads},
          {"n_positions", options.max_position_embeddings},
          {"layer_norm_epsilon", options.layer_norm_epsilon},
          {"activation_function", "gelu_new"},
          {"attn_pdrop", options.attention_dropout},
          {"embd_pdrop", options.embedding_dropout},
          {"resid_pdrop", options.hidden_dropout}};
}

void add_rotary(json& config, const nn::ModelOptions& options) {
  const bool neox = options.architecture == "gpt_neox";
  config[neox ? "rotary_emb_base" : "rope_theta"] = options.rope_theta;
  if (nn::family_of(options).has("partial_rotary_factor")) {
    config[neox ? "rotary_pct" : "partial_rotary_factor"] = options.partial_rotary_factor;
  }
  if (options.rope_type == nn::RopeType::kDefault) return;
  json scaling = {{"rope_type", options.rope_type.name()}, {"factor", options.rope_factor}};
  if (options.rope_type == nn::RopeType::kLlama3) {
    scaling.update({{"low_freq_factor", options.rope_low_freq_factor},
                    {"high_freq_factor", options.rope_high_freq_factor},
                    {"original_max_position_embeddings", options.rope_original_length}});
  }
  config["rope_scaling"] = scaling;
}

/// A list with an entry for each layer.
template <typename OfLayer>
json each_layer(const nn::ModelOptions& options, const OfLayer& of_layer) {
  json list = json::array();
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) list.push_back(of_layer(i));
  return list;
}

/// What gemma2 and gemma3_text have, whose defaults in transformers are those of one size.
json gemma_config(const nn::ModelOptions& options) {
  const auto cap = [](double value) { return value > 0 ? json(value) : json(); };
  const int64_t scalar = options.query_pre_attn_scalar;
  json config = {{"head_dim", nn::head_width(options)},
                 {"hidden_activation", util::name_of(options.hidden_act)},
                 {"query_pre_attn_scalar", scalar > 0 ? scalar : nn::head_width(options)},
                 {"attn_logit_softcapping", cap(options.attn_logit_softcapping)},
                 {"final_logit_softcapping", cap(options.final_logit_softcapping)},
                 {"sliding_window",
                  options.sliding_window > 0 ? options.sliding_window : options.max_position_embeddings},
                 {"layer_types", each_layer(options, [&](int64_t layer) {
                    return nn::window_of_layer(options, layer) > 0 ? "sliding_attention" : "full_attention";
                  })}};
  if (nn::family_of(options).has("rope_local_base_freq")) {
    config["rope_local_base_freq"] =
        options.rope_local_base_freq > 0 ? options.rope_local_base_freq : options.rope_theta;
  }
  return config;
}

/// What models with experts have.
json expert_config(const nn::ModelOptions& options) {
  const nn::Family& family = nn::family_of(options);
  const bool mixtral = options.architecture == "mixtral";
  json config = {{mixtral ? "num_local_experts" : "num_experts", options.num_experts},
                 {"num_experts_per_tok", options.num_experts_per_tok},
                 {"router_aux_loss_coef", options.router_aux_loss_coef}};
  if (family.has("moe_intermediate_size")) config["moe_intermediate_size"] = options.moe_intermediate_size;
  if (family.has("norm_topk_prob")) config["norm_topk_prob"] = options.norm_topk_prob;
  if (family.has("decoder_sparse_step")) {
    config.update({{"decoder_sparse_step", options.decoder_sparse_step}, {"mlp_only_layers", json::array()}});
  }
  return config;
}

/// Of all but gpt2.
json decoder_config(const nn::ModelOptions& options, const std::string& type) {
  const nn::Family& family = nn::family_of(options);
  json config = {{"hidden_size", options.hidden_size},
                 {"intermediate_size", options.intermediate_size},
                 {"num_hidden_layers", options.num_hidden_layers},
                 {"num_attention_heads", options.num_attention_heads},
                 {"max_position_embeddings", options.max_position_embeddings},
                 {"attention_dropout", options.attention_dropout},
                 {"hidden_act", util::name_of(options.hidden_act)}};
  if (family.has("num_key_value_heads")) config["num_key_value_heads"] = options.num_key_value_heads;
  if (family.norm == nn::NormKind::kLayer) {
    config["layer_norm_eps"] = options.layer_norm_epsilon;
  } else {
    config["rms_norm_eps"] = options.rms_norm_eps;
  }
  // The families' defaults are ids of their own vocabularies, beyond a smaller one.
  if (type != "llama" && type != "mistral" && type != "qwen2") config["pad_token_id"] = nullptr;
  add_rotary(config, options);
  if (options.head_dim > 0 || type == "qwen3") config["head_dim"] = nn::head_width(options);
  if (family.has("attention_bias") && type != "mistral" && type != "qwen2") {
    config["attention_bias"] = options.attention_bias;
  }
  if (family.has("mlp_bias") && type != "mistral" && type != "qwen2") config["mlp_bias"] = options.mlp_bias;
  if (type == "mistral") config["sliding_window"] = options.sliding_window;
  if (type == "mixtral")
    config["sliding_window"] = options.sliding_window > 0 ? json(options.sliding_window) : json();
  if (type.starts_with("qwen") || type == "smollm3") config["use_sliding_window"] = false;
  if (type == "smollm3") {
    config["no_rope_layers"] =
        each_layer(options, [&](int64_t layer) { return nn::is_rotary_layer(options, layer) ? 1 : 0; });
    if (options.no_rope_layer_interval > 0) config["no_rope_layer_interval"] = options.no_rope_layer_interval;
  }
  if (type == "phi3") {
    config.update({{"sliding_window", options.sliding_window > 0 ? json(options.sliding_window) : json()},
                   {"original_max_position_embeddings", options.max_position_embeddings},
                   {"embd_pdrop", options.embedding_dropout},
                   {"resid_pdrop", options.hidden_dropout}});
  }
  if (type == "gpt_neox") {
    config.update({{"use_parallel_residual", options.use_parallel_residual},
                   {"hidden_dropout", options.hidden_dropout}});
  }
  if (family.has("query_pre_attn_scalar")) config.update(gemma_config(options));
  if (family.has_experts()) config.update(expert_config(options));
  return config;
}

/// Keys of hugging_face_config() that weights do not determine.
constexpr const char* kFree[] = {"initializer_range",   "attention_dropout", "attn_pdrop",
                                 "embd_pdrop",          "resid_pdrop",       "hidden_dropout",
                                 "router_aux_loss_coef"};
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
  const std::string type = model_type_of(options);
  config.update({{"architectures", {causal_model_class(type)}}, {"model_type", type}});
  config.update(type == "gpt2" ? gpt2_config(options) : decoder_config(options, type));
  return config;
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

const std::vector<HuggingFaceType>& hugging_face_types() {
  static const std::vector<HuggingFaceType> types = {{"gpt2", "gpt2", "GPT2LMHeadModel"},
                                                     {"llama", "llama", "LlamaForCausalLM"},
                                                     {"mistral", "llama", "MistralForCausalLM"},
                                                     {"qwen2", "llama", "Qwen2ForCausalLM"},
                                                     {"qwen3", "qwen3", "Qwen3ForCausalLM"},
                                                     {"olmo2", "olmo2", "Olmo2ForCausalLM"},
                                                     {"smollm3", "smollm3", "SmolLM3ForCausalLM"},
                                                     {"phi3", "phi3", "Phi3ForCausalLM"},
                                                     {"gemma2", "gemma2", "Gemma2ForCausalLM"},
                                                     {"gemma3_text", "gemma3_text", "Gemma3ForCausalLM"},
                                                     {"gpt_neox", "gpt_neox", "GPTNeoXForCausalLM"},
                                                     {"mixtral", "mixtral", "MixtralForCausalLM"},
                                                     {"qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM"}};
  return types;
}

const char* causal_model_class(const json& model_type) {
  for (const HuggingFaceType& type : hugging_face_types()) {
    if (model_type == type.model_type) return type.model_class;
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
