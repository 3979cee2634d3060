#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Black et al.: GPT-NeoX-20B, 2022, section 2; Biderman et al.: Pythia, 2023.
Family gpt_neox() {
  return {.architecture = "gpt_neox",
          .options = kRotaryOptions + Names{"hidden_act", "attention_bias", "layer_norm_epsilon",
                                            "partial_rotary_factor", "use_parallel_residual"},
          .norm = NormKind::kLayer,
          .qkv_form = QkvForm::kByHead,
          .biased_feed_forward = true,
          .inner = "gpt_neox",
          .tokens = "embed_in",
          .last_norm = "final_layer_norm",
          .head = "embed_out",
          .norms_come_first = true,
          .attention = "attention",
          .queries = "query_key_value",
          .output = "dense",
          .gate = "",
          .up = "dense_h_to_4h",
          .down = "dense_4h_to_h",
          .types = {{.name = "gpt_neox",
                     .model_class = "GPTNeoXForCausalLM",
                     .sizes = {50432, 6144, 24576, 44, 64, 0, 2048},
                     .defaults = {.attention_bias = true,
                                  .use_parallel_residual = true,
                                  .hidden_act = Activation::kGelu,
                                  .partial_rotary_factor = 0.25},
                     .gguf = {.architecture = "gptneox",
                              .keys = kGgufDecoder +
                                      GgufKeys{{"attention.layer_norm_epsilon", "layer_norm_epsilon"},
                                               {"rope.dimension_count", "partial_rotary_factor", true},
                                               {"rope.freq_base", "rope_theta", true},
                                               {"use_parallel_residual", "use_parallel_residual"}},
                              .fixed = R"({"hidden_act": "gelu", "attention_bias": true,
                                           "tie_word_embeddings": false})"},
                     .keys = {{"layer_norm_epsilon", "layer_norm_eps"},
                              {"rope_theta", "rotary_emb_base"},
                              {"partial_rotary_factor", "rotary_pct"},
                              {"hidden_dropout", "hidden_dropout"},
                              {"embedding_dropout", "hidden_dropout", ConfigKey::Direction::kReadOnly}},
                     .written = kNoPadding}}};
}

}  // namespace fsdp::nn::built_in
