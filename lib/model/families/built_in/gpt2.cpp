#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Radford et al.: Language Models are Unsupervised Multitask Learners, 2019, section 2.3.
Family gpt2() {
  return {
      .architecture = "gpt2",
      .options = {"layer_norm_epsilon"},
      .norm = NormKind::kLayer,
      .qkv_form = QkvForm::kSideBySide,
      .transposed = true,
      .biased_feed_forward = true,
      .damped = "c_proj.weight",
      .inner = "transformer",
      .tokens = "wte",
      .positions = "wpe",
      .blocks = "h",
      .last_norm = "ln_f",
      .norm_before_attention = "ln_1",
      .norm_before_feed_forward = "ln_2",
      .norms_come_first = true,
      .attention = "attn",
      .queries = "c_attn",
      .output = "c_proj",
      .gate = "",
      .up = "c_fc",
      .down = "c_proj",
      .types = {
          {.name = "gpt2",
           .model_class = "GPT2LMHeadModel",
           .sizes = {50257, 768, 0, 12, 12, 0, 1024},
           .defaults = {.embedding_dropout = 0.1,
                        .attention_dropout = 0.1,
                        .hidden_dropout = 0.1,
                        .tie_word_embeddings = true},
           .gguf = {.architecture = "gpt2",
                    .keys = kGgufDecoder + GgufKeys{{"attention.layer_norm_epsilon", "layer_norm_epsilon"}},
                    .fixed = "{}"},
           .keys = {{"hidden_size", "hidden_size", ConfigKey::Direction::kReadOnly},
                    {"hidden_size", "n_embd"},
                    {"intermediate_size", "n_inner"},
                    {"num_hidden_layers", "num_hidden_layers", ConfigKey::Direction::kReadOnly},
                    {"num_hidden_layers", "n_layer"},
                    {"num_attention_heads", "num_attention_heads", ConfigKey::Direction::kReadOnly},
                    {"num_attention_heads", "n_head"},
                    {"max_position_embeddings", "max_position_embeddings", ConfigKey::Direction::kReadOnly},
                    {"max_position_embeddings", "n_positions"},
                    {"attention_dropout", "attn_pdrop"},
                    {"embedding_dropout", "embd_pdrop"},
                    {"hidden_dropout", "resid_pdrop"}},
           .required = R"({"activation_function": "gelu_new", "scale_attn_weights": true,
                                     "scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false})",
           .written = R"({"activation_function": "gelu_new"})"}}};
}

}  // namespace fsdp::nn::built_in
