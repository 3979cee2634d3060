#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Abdin et al.: Phi-3, 2024.
Family phi3() {
  return {.architecture = "phi3",
          .options = kLlamaOptions + Names{"rope_theta", "rope_type", "rope_factor", "rope_original_length",
                                           "rope_attention_factor", "rope_short_factor", "rope_long_factor",
                                           "partial_rotary_factor", "sliding_window"},
          .qkv_form = QkvForm::kSideBySide,
          .queries = "qkv_proj",
          .gate = "",
          .up = "gate_up_proj",
          .joined_gate = true,
          .types = {{.name = "phi3",
                     .model_class = "Phi3ForCausalLM",
                     .sizes = {32064, 3072, 8192, 32, 32, 0, 4096},
                     .gguf = {.architecture = "phi3",
                              .keys = kGgufDecoder + kGgufGroupedHeads +
                                      GgufKeys{{"rope.dimension_count", "partial_rotary_factor", true},
                                               kGgufWindow},
                              .has_longrope = true},
                     .keys = {{"max_position_embeddings", "max_position_embeddings"},
                              {"max_position_embeddings", "original_max_position_embeddings",
                               ConfigKey::Direction::kWriteOnly},
                              {"embedding_dropout", "embd_pdrop", ConfigKey::Direction::kWriteOnly},
                              {"hidden_dropout", "resid_pdrop"}},
                     .written = kNoPadding,
                     .original_length = 4096}}};
}

}  // namespace fsdp::nn::built_in
