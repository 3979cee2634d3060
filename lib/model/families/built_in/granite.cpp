#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// IBM: Granite 3.0 Language Models, 2024: a llama with multipliers.
Family granite() {
  return {.architecture = "granite",
          .options = kLlamaOptions + kRotaryOptions +
                     Names{"attention_bias", "mlp_bias", "attention_multiplier", "embedding_multiplier",
                           "residual_multiplier", "logits_scaling"},
          .types = {
              {.name = "granite",
               .model_class = "GraniteForCausalLM",
               .sizes = {32000, 4096, 11008, 32, 32, 0, 2048},
               .defaults = {.attention_multiplier = 1, .rms_norm_eps = 1e-6},
               .gguf = {.architecture = "granite",
                        .keys = kGgufLlama + GgufKeys{{"attention.scale", "attention_multiplier"},
                                                      {"embedding_scale", "embedding_multiplier"},
                                                      {"residual_scale", "residual_multiplier"},
                                                      {"logit_scale", "logits_scaling"}},
                        .flags = {{"attention_bias", "blk.0.attn_q.bias"}, {"mlp_bias", "blk.0.ffn_up.bias"}},
                        .rotates_neighbours = true,
                        .scales_frequencies = true}}}};
}

}  // namespace fsdp::nn::built_in
