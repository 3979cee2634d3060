#include "model/families/option_rules.h"

#include <algorithm>

#include "base/util/error.h"

namespace fsdp::nn {

bool OptionRule::is_equal(const ModelOptions& a, const ModelOptions& b) const {
  return std::visit([&](auto member) { return a.*member == b.*member; }, field);
}

const std::vector<OptionRule>& option_rules() {
  using Options = ModelOptions;
  using enum OptionRange;
  static const std::vector<OptionRule> rules = {
      {"vocab_size", &Options::vocab_size, kSize, kMostVocabulary, false},
      {"hidden_size", &Options::hidden_size, kSize, kMostWidth, false},
      {"intermediate_size", &Options::intermediate_size, kSize, kMostWidth, false},
      {"num_hidden_layers", &Options::num_hidden_layers, kSize, kMostLayers, false},
      {"num_attention_heads", &Options::num_attention_heads, kSize, kMostHeads, false},
      {"num_key_value_heads", &Options::num_key_value_heads, kSize, kMostHeads, false},
      {"max_position_embeddings", &Options::max_position_embeddings, kSize, kMostPositions, false},
      {"head_dim", &Options::head_dim, kSize, kMostWidth},
      {"attention_bias", &Options::attention_bias},
      {"qkv_bias", &Options::qkv_bias},
      {"mlp_bias", &Options::mlp_bias},
      {"hidden_act", &Options::hidden_act},
      {"sliding_window", &Options::sliding_window, kSizeOrNone, kMostPositions},
      {"sliding_window_pattern", &Options::sliding_window_pattern, kElsewhere, kMostLayers},
      {"rope_theta", &Options::rope_theta, kPositive, 0, false},
      {"rope_type", &Options::rope_type, kElsewhere},
      {"rope_factor", &Options::rope_factor, kElsewhere, 0, false},
      {"rope_low_freq_factor", &Options::rope_low_freq_factor, kElsewhere, 0, false},
      {"rope_high_freq_factor", &Options::rope_high_freq_factor, kElsewhere, 0, false},
      {"rope_original_length", &Options::rope_original_length, kElsewhere, kMostPositions, false},
      {"rope_attention_factor", &Options::rope_attention_factor, kElsewhere, 0, false},
      {"rope_beta_fast", &Options::rope_beta_fast, kElsewhere, 0, false},
      {"rope_beta_slow", &Options::rope_beta_slow, kElsewhere, 0, false},
      {"rope_mscale", &Options::rope_mscale, kElsewhere, 0, false},
      {"rope_mscale_all_dim", &Options::rope_mscale_all_dim, kElsewhere, 0, false},
      {"rope_truncate", &Options::rope_truncate, kElsewhere, 0, false},
      {"rope_short_factor", &Options::rope_short_factor, kElsewhere, 0, false},
      {"rope_long_factor", &Options::rope_long_factor, kElsewhere, 0, false},
      {"rope_local_base_freq", &Options::rope_local_base_freq, kPositive},
      {"partial_rotary_factor", &Options::partial_rotary_factor, kPositive},
      {"no_rope_layer_interval", &Options::no_rope_layer_interval, kElsewhere, kMostLayers},
      {"query_pre_attn_scalar", &Options::query_pre_attn_scalar, kSize, kMostWidth},
      {"attention_multiplier", &Options::attention_multiplier, kPositive},
      {"embedding_multiplier", &Options::embedding_multiplier, kPositive},
      {"residual_multiplier", &Options::residual_multiplier, kPositive},
      {"logits_scaling", &Options::logits_scaling, kPositive},
      {"attn_logit_softcapping", &Options::attn_logit_softcapping, kPositiveOrNone},
      {"final_logit_softcapping", &Options::final_logit_softcapping, kPositiveOrNone},
      {"use_parallel_residual", &Options::use_parallel_residual},
      {"num_experts", &Options::num_experts, kSize, kMostExperts},
      {"num_experts_per_tok", &Options::num_experts_per_tok, kSize, kMostExperts},
      {"moe_intermediate_size", &Options::moe_intermediate_size, kSize, kMostWidth},
      {"norm_topk_prob", &Options::norm_topk_prob},
      {"decoder_sparse_step", &Options::decoder_sparse_step, kSize, kMostLayers},
      {"router_aux_loss_coef", &Options::router_aux_loss_coef, kNotNegative, 0, false},
      {"rms_norm_eps", &Options::rms_norm_eps, kPositive, 0, false},
      {"layer_norm_epsilon", &Options::layer_norm_epsilon, kPositive, 0, false},
      {"initializer_range", &Options::initializer_range, kNotNegative, 0, false},
      {"embedding_dropout", &Options::embedding_dropout, kShare, 0, false},
      {"attention_dropout", &Options::attention_dropout, kShare, 0, false},
      {"hidden_dropout", &Options::hidden_dropout, kShare, 0, false},
      {"tie_word_embeddings", &Options::tie_word_embeddings, kAny, 0, false}};
  return rules;
}

const OptionRule& option_rule(std::string_view name) {
  const auto found = std::ranges::find(option_rules(), name, &OptionRule::name);
  FSDP_CHECK(found != option_rules().end(), name);
  return *found;
}

}  // namespace fsdp::nn
