#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Qwen Team: Qwen3, 2025.
Family qwen3() {
  return {.architecture = "qwen3",
          .options = kLlamaOptions + kRotaryOptions + Names{"head_dim", "attention_bias"},
          .query_key_norm = QueryKeyNorm::kOfHead,
          .types = {{.name = "qwen3",
                     .model_class = "Qwen3ForCausalLM",
                     .sizes = {151936, 4096, 22016, 32, 32, 32, 32768},
                     .defaults = {.head_dim = 128, .rms_norm_eps = 1e-6},
                     .gguf = {.architecture = "qwen3",
                              .keys = kGgufLlama,
                              .fixed = R"({"hidden_act": "silu", "attention_bias": false})"},
                     .required = R"({"use_sliding_window": false})",
                     .written = R"({"use_sliding_window": false, "pad_token_id": null})"}}};
}

}  // namespace fsdp::nn::built_in
