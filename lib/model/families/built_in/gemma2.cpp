#include "model/families/common.h"

namespace fsdp::nn::built_in {

Family gemma2() {
  return gemma(
      {.name = "gemma2",
       .model_class = "Gemma2ForCausalLM",
       .sizes = {256000, 2304, 9216, 26, 8, 4, 8192},
       .defaults = {.sliding_window_pattern = 2, .attn_logit_softcapping = 50, .final_logit_softcapping = 30},
       .gguf = {.architecture = "gemma2",
                .keys = {{"attention.sliding_window", "sliding_window"},
                         {"attn_logit_softcapping", "attn_logit_softcapping"},
                         {"final_logit_softcapping", "final_logit_softcapping"}},
                .fixed = R"({"hidden_activation": "gelu_pytorch_tanh", "attention_bias": false,
                                      "tie_word_embeddings": true})",
                .window_pattern = 2,
                .layers_with_other_scale = 46},
       .written = kNoPadding},
      {"attn_logit_softcapping"});
}

}  // namespace fsdp::nn::built_in
