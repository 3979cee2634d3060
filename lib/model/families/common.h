#pragma once

// What several families of built_in/ share.

#include <vector>

#include "model/families/family.h"

namespace fsdp::nn::built_in {

using Names = std::vector<std::string>;
using GgufKeys = std::vector<GgufKey>;

template <typename T>
std::vector<T> operator+(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline const Names kRotaryOptions = {"rope_theta",
                                     "rope_type",
                                     "rope_factor",
                                     "rope_low_freq_factor",
                                     "rope_high_freq_factor",
                                     "rope_original_length",
                                     "rope_attention_factor",
                                     "rope_beta_fast",
                                     "rope_beta_slow",
                                     "rope_mscale",
                                     "rope_mscale_all_dim",
                                     "rope_truncate",
                                     "rope_short_factor",
                                     "rope_long_factor"};
/// Options of all families that began as a llama.
inline const Names kLlamaOptions = {"num_key_value_heads", "hidden_act", "rms_norm_eps"};
inline const Names kExpertOptions = {"num_experts", "num_experts_per_tok"};

/// transformers' default of pad_token_id is an id of the family's own vocabulary, beyond a smaller one.
inline constexpr const char* kNoPadding = R"({"pad_token_id": null})";

inline const GgufKey kGgufWindow = {"attention.sliding_window", "sliding_window", true};
inline const GgufKeys kGgufWindows = {kGgufWindow,
                                      {"attention.sliding_window_pattern", "sliding_window_pattern", true}};
inline const GgufKeys kGgufDecoder = {
    {"vocab_size", "vocab_size", true},           {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},          {"block_count", "num_hidden_layers"},
    {"feed_forward_length", "intermediate_size"}, {"attention.head_count", "num_attention_heads"}};
inline const GgufKeys kGgufGroupedHeads = {{"attention.head_count_kv", "num_key_value_heads", true},
                                           {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                                           {"rope.freq_base", "rope_theta", true}};
inline const GgufKeys kGgufHeads =
    kGgufDecoder + kGgufGroupedHeads +
    GgufKeys{{"attention.key_length", "head_dim", true}, {"attention.value_length", "head_dim", true}};
inline const GgufKeys kGgufLlama = kGgufHeads + GgufKeys{{"rope.dimension_count", "head_dim", true}};

/// Gemma 2 and 3 (Gemma Team: Gemma 2, 2024): norms before and after each layer. `type` is its only type.
inline Family gemma(ModelType type, const Names& more_options) {
  type.defaults.head_dim = type.defaults.query_pre_attn_scalar = 256;
  type.defaults.sliding_window = 4096;
  type.defaults.hidden_act = Activation::kGeluTanh;
  type.defaults.rms_norm_eps = 1e-6;
  type.defaults.tie_word_embeddings = true;
  type.keys = {{"hidden_act", "hidden_activation"},
               {"hidden_act", "hidden_act", ConfigKey::Direction::kWriteOnly}};
  type.required = R"({"use_bidirectional_attention": false})";
  type.gguf.keys = kGgufLlama + type.gguf.keys +
                   GgufKeys{{"attention.sliding_window_pattern", "sliding_window_pattern", true}};
  return {.architecture = type.name,
          .options = kLlamaOptions + kRotaryOptions +
                     Names{"head_dim", "attention_bias", "sliding_window", "sliding_window_pattern",
                           "query_pre_attn_scalar", "final_logit_softcapping"} +
                     more_options,
          .norm = NormKind::kRmsPlusOne,
          .scaled_embeddings = true,
          .norm_after_attention = "post_attention_layernorm",
          .norm_before_feed_forward = "pre_feedforward_layernorm",
          .norm_after_feed_forward = "post_feedforward_layernorm",
          .types = {type}};
}

}  // namespace fsdp::nn::built_in
