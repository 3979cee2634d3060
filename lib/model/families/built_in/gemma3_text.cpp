#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Gemma Team: Gemma 3, 2025: Gemma 2 with norms of queries and keys instead of the cap of scores.
Family gemma3_text() {
  Family family =
      gemma({.name = "gemma3_text",
             .model_class = "Gemma3ForCausalLM",
             .sizes = {262208, 2304, 9216, 26, 8, 4, 131072},
             .defaults = {.sliding_window_pattern = 6, .rope_theta = 1e6, .rope_local_base_freq = 1e4},
             .gguf = {.architecture = "gemma3",
                      .keys = {kGgufWindow,
                               {"final_logit_softcapping", "final_logit_softcapping", true},
                               {"rope.freq_base_swa", "rope_local_base_freq", true}},
                      .fixed = R"({"hidden_activation": "gelu_pytorch_tanh", "attention_bias": false})",
                      .window_pattern = 6,
                      .layers_with_other_scale = 62},
             .written = R"({"attn_logit_softcapping": null, "pad_token_id": null})"},
            {"rope_local_base_freq"});
  family.query_key_norm = QueryKeyNorm::kOfHead;
  return family;
}

}  // namespace fsdp::nn::built_in
