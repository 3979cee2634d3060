#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// GLM Team: ChatGLM, 2024, and GLM-4-0414: norms before and after each layer, half of each head rotates.
Family glm4() {
  return {
      .architecture = "glm4",
      .options = kLlamaOptions + kRotaryOptions + Names{"head_dim", "qkv_bias", "partial_rotary_factor"},
      .rotates_neighbours = true,
      .norm_after_attention = "post_self_attn_layernorm",
      .norm_after_feed_forward = "post_mlp_layernorm",
      .gate = "",
      .up = "gate_up_proj",
      .joined_gate = true,
      .types = {
          {.name = "glm4",
           .model_class = "Glm4ForCausalLM",
           .sizes = {151552, 4096, 13696, 40, 32, 2, 131072},
           .defaults =
               {.head_dim = 128, .qkv_bias = true, .partial_rotary_factor = 0.5, .rms_norm_eps = 1.5625e-7},
           .gguf = {.architecture = "glm4",
                    .keys = kGgufHeads + GgufKeys{{"rope.dimension_count", "partial_rotary_factor", true}},
                    .flags = {{"attention_bias", "blk.0.attn_q.bias"}},
                    .rotates_neighbours = true},
           .keys = {{"qkv_bias", "attention_bias"}},
           .written = kNoPadding}}};
}

}  // namespace fsdp::nn::built_in
