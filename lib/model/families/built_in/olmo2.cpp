#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// OLMo Team: 2 OLMo 2 Furious, 2025, section 2. A model with windows is an OLMo 3 (OLMo Team: OLMo 3, 2025),
/// whose rotary scaling is that of the layers without one.
Family olmo2() {
  const GgufArchitecture gguf = {
      .architecture = "olmo2",
      .keys = kGgufLlama + kGgufWindows + GgufKeys{{"rope.freq_base_swa", "rope_local_base_freq", true}},
      .fixed = R"({"hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": false})",
      .window_pattern = 4,
      .plain_windows = true};
  return {
      .architecture = "olmo2",
      .options = kLlamaOptions + kRotaryOptions +
                 Names{"attention_bias", "sliding_window", "sliding_window_pattern", "rope_local_base_freq"},
      .query_key_norm = QueryKeyNorm::kOfAll,
      .norm_before_attention = "",
      .norm_after_attention = "post_attention_layernorm",
      .norm_before_feed_forward = "",
      .norm_after_feed_forward = "post_feedforward_layernorm",
      .types = {{.name = "olmo2",
                 .model_class = "Olmo2ForCausalLM",
                 .sizes = {50304, 4096, 11008, 32, 32, 0, 2048},
                 .gguf = gguf,
                 .without_key = {"sliding_window", "sliding_window_pattern", "rope_local_base_freq"},
                 .written = kNoPadding},
                {.name = "olmo3",
                 .model_class = "Olmo3ForCausalLM",
                 .sizes = {50304, 4096, 11008, 32, 32, 0, 2048},
                 .defaults = {.sliding_window = 4096,
                              .sliding_window_pattern = 4,
                              .rope_theta = 5e5,
                              .rope_local_base_freq = 5e5},
                 .gguf = gguf,
                 .written = kNoPadding,
                 .nested_rotary = true}}};
}

}  // namespace fsdp::nn::built_in
