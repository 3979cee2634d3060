#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Touvron et al.: LLaMA, 2023, section 2.2. A model with sliding_window is a Mistral, one with qkv_bias a
/// Qwen2.
Family llama() {
  const GgufArchitecture gguf = {
      .architecture = "llama",
      .keys = kGgufLlama + GgufKeys{kGgufWindow},
      .flags = {{"attention_bias", "blk.0.attn_q.bias"}, {"mlp_bias", "blk.0.ffn_up.bias"}},
      .rotates_neighbours = true,
      .scales_frequencies = true};
  return {.architecture = "llama",
          .options = kLlamaOptions + kRotaryOptions +
                     Names{"head_dim", "attention_bias", "qkv_bias", "mlp_bias", "sliding_window"},
          .types = {{.name = "llama",
                     .model_class = "LlamaForCausalLM",
                     .sizes = {32000, 4096, 11008, 32, 32, 0, 2048},
                     .defaults = {.rms_norm_eps = 1e-6},
                     .gguf = gguf,
                     .without_key = {"qkv_bias", "sliding_window"}},
                    {.name = "mistral",
                     .model_class = "MistralForCausalLM",
                     .sizes = {32000, 4096, 14336, 32, 32, 8, 131072},
                     .defaults = {.sliding_window = 4096, .rms_norm_eps = 1e-6},
                     .gguf = gguf,
                     .without_key = {"attention_bias", "qkv_bias", "mlp_bias"},
                     .lists_windows = true},
                    {.name = "qwen2",
                     .model_class = "Qwen2ForCausalLM",
                     .sizes = {151936, 4096, 22016, 32, 32, 32, 32768},
                     .defaults = {.qkv_bias = true, .rms_norm_eps = 1e-6},
                     .gguf = {.architecture = "qwen2", .keys = kGgufLlama, .heads_fill_width = true},
                     .without_key = {"attention_bias", "qkv_bias", "mlp_bias", "sliding_window"},
                     .required = R"({"use_sliding_window": false})",
                     .written = R"({"use_sliding_window": false})"}}};
}

}  // namespace fsdp::nn::built_in
