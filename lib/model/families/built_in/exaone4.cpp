#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// LG AI Research: EXAONE 4.0, 2025: layers without a window have no rotary positions, if others have one.
Family exaone4() {
  return {.architecture = "exaone4",
          .options =
              kLlamaOptions + kRotaryOptions + Names{"head_dim", "sliding_window", "sliding_window_pattern"},
          .query_key_norm = QueryKeyNorm::kOfHead,
          .rotates_in_windows = true,
          .norm_before_attention = "",
          .norm_after_attention = "post_attention_layernorm",
          .norm_before_feed_forward = "",
          .norm_after_feed_forward = "post_feedforward_layernorm",
          .types = {{.name = "exaone4",
                     .model_class = "Exaone4ForCausalLM",
                     .sizes = {102400, 4096, 16384, 32, 32, 32, 2048},
                     .defaults = {.sliding_window = 4096, .sliding_window_pattern = 4},
                     .gguf = {.architecture = "exaone4",
                              .keys = kGgufLlama + kGgufWindows,
                              .scales_frequencies = true,
                              .heads_fill_width = true,
                              .window_pattern = 4,
                              .layers_with_windows = 64},
                     .written = kNoPadding}}};
}

}  // namespace fsdp::nn::built_in
