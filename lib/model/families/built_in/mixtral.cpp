#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Jiang et al.: Mixtral of Experts, 2024.
Family mixtral() {
  return {.architecture = "mixtral",
          .options = kLlamaOptions + kRotaryOptions + kExpertOptions + Names{"head_dim", "sliding_window"},
          .feed_forward = "block_sparse_moe",
          .gate = "w1",
          .up = "w3",
          .down = "w2",
          .router = "gate",
          .renormalizes = true,
          .types = {{.name = "mixtral",
                     .model_class = "MixtralForCausalLM",
                     .sizes = {32000, 4096, 14336, 32, 32, 8, 131072},
                     .defaults = {.num_experts = 8, .rope_theta = 1e6},
                     .gguf = {.architecture = "llama",
                              .keys = kGgufLlama + GgufKeys{kGgufWindow,
                                                            {"expert_count", "num_experts"},
                                                            {"expert_used_count", "num_experts_per_tok"}},
                              .rotates_neighbours = true,
                              .scales_frequencies = true},
                     .keys = {{"num_experts", "num_experts", ConfigKey::Direction::kReadOnly},
                              {"num_experts", "num_local_experts"}},
                     .written = kNoPadding}}};
}

}  // namespace fsdp::nn::built_in
