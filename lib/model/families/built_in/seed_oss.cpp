#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// ByteDance: Seed-OSS, 2025: biases of queries, keys and values alone.
Family seed_oss() {
  return {.architecture = "seed_oss",
          .options = kLlamaOptions + kRotaryOptions + Names{"head_dim", "qkv_bias", "mlp_bias"},
          .types = {{.name = "seed_oss",
                     .model_class = "SeedOssForCausalLM",
                     .sizes = {155136, 4096, 27648, 64, 80, 8, 524288},
                     .defaults = {.head_dim = 128,
                                  .qkv_bias = true,
                                  .rms_norm_eps = 1e-6,
                                  .attention_dropout = 0.1,
                                  .hidden_dropout = 0.1},
                     .gguf = {.architecture = "seed_oss",
                              .keys = kGgufLlama,
                              .flags = {{"attention_bias", "blk.0.attn_q.bias"}},
                              .fixed = R"({"hidden_act": "silu", "mlp_bias": false})",
                              .norm_before_feed_forward = "post_attention_norm"},
                     .keys = {{"qkv_bias", "attention_bias"}, {"hidden_dropout", "residual_dropout"}},
                     .required = R"({"attention_out_bias": false})",
                     .written = R"({"attention_out_bias": false, "pad_token_id": null})"}}};
}

}  // namespace fsdp::nn::built_in
