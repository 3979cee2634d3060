#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Hugging Face: SmolLM3, 2025; layers without positions: Yang et al.: Rope to Nope and Back Again, 2025.
Family smollm3() {
  return {.architecture = "smollm3",
          .options = kLlamaOptions + kRotaryOptions +
                     Names{"head_dim", "attention_bias", "mlp_bias", "no_rope_layer_interval"},
          .types = {{.name = "smollm3",
                     .model_class = "SmolLM3ForCausalLM",
                     .sizes = {128256, 2048, 11008, 36, 16, 4, 32768},
                     .defaults = {.rope_theta = 2e6,
                                  .no_rope_layer_interval = 4,
                                  .rms_norm_eps = 1e-6,
                                  .tie_word_embeddings = true},
                     .gguf = {.architecture = "smollm3",
                              .keys = kGgufLlama,
                              .fixed = R"({"hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
                                           "no_rope_layer_interval": 4})",
                              .rotates_neighbours = true},
                     .required = R"({"use_sliding_window": false})",
                     .written = R"({"use_sliding_window": false, "pad_token_id": null})"}}};
}

}  // namespace fsdp::nn::built_in
