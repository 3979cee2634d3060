#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Kyutai: Helium 1, 2025.
Family helium() {
  return {.architecture = "helium",
          .options = kLlamaOptions + kRotaryOptions + Names{"head_dim", "qkv_bias", "mlp_bias"},
          .rotates_neighbours = true,
          .types = {{.name = "helium",
                     .model_class = "HeliumForCausalLM",
                     .sizes = {48000, 2560, 7040, 24, 20, 20, 4096},
                     .defaults = {.head_dim = 128, .rope_theta = 1e5, .rms_norm_eps = 1e-8},
                     .keys = {{"qkv_bias", "attention_bias"}},
                     .written = kNoPadding}}};
}

}  // namespace fsdp::nn::built_in
