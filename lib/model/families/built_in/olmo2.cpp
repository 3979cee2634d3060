#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// OLMo Team: 2 OLMo 2 Furious, 2025, section 2.
Family olmo2() {
  return {.architecture = "olmo2",
          .options = kLlamaOptions + kRotaryOptions + Names{"attention_bias"},
          .query_key_norm = QueryKeyNorm::kOfAll,
          .norm_before_attention = "",
          .norm_after_attention = "post_attention_layernorm",
          .norm_before_feed_forward = "",
          .norm_after_feed_forward = "post_feedforward_layernorm",
          .types = {{.name = "olmo2",
                     .model_class = "Olmo2ForCausalLM",
                     .sizes = {50304, 4096, 11008, 32, 32, 0, 2048},
                     .gguf = {.architecture = "olmo2",
                              .keys = kGgufLlama,
                              .fixed = R"({"hidden_act": "silu", "attention_bias": false,
                                           "tie_word_embeddings": false})"},
                     .written = kNoPadding}}};
}

}  // namespace fsdp::nn::built_in
