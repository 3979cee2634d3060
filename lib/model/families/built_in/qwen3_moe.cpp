#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Qwen Team: Qwen3, 2025.
Family qwen3_moe() {
  return {
      .architecture = "qwen3_moe",
      .options = kLlamaOptions + kRotaryOptions + kExpertOptions +
                 Names{"head_dim", "attention_bias", "moe_intermediate_size", "norm_topk_prob",
                       "decoder_sparse_step"},
      .query_key_norm = QueryKeyNorm::kOfHead,
      .router = "gate",
      .types = {
          {.name = "qwen3_moe",
           .model_class = "Qwen3MoeForCausalLM",
           .sizes = {151936, 2048, 6144, 24, 32, 4, 32768},
           .defaults = {.num_experts = 128,
                        .num_experts_per_tok = 8,
                        .moe_intermediate_size = 768,
                        .rms_norm_eps = 1e-6},
           .gguf = {.architecture = "qwen3moe",
                    .keys = kGgufLlama + GgufKeys{{"expert_count", "num_experts"},
                                                  {"expert_used_count", "num_experts_per_tok"},
                                                  {"expert_feed_forward_length", "moe_intermediate_size"}},
                    .fixed = R"({"hidden_act": "silu", "attention_bias": false, "norm_topk_prob": true,
                                           "decoder_sparse_step": 1})"},
           .keys = {{"num_experts", "num_experts"},
                    {"num_experts", "num_local_experts", ConfigKey::Direction::kReadOnly}},
           .required = R"({"use_sliding_window": false, "mlp_only_layers": []})",
           .written = R"({"use_sliding_window": false, "mlp_only_layers": [], "pad_token_id": null})"}}};
}

}  // namespace fsdp::nn::built_in
