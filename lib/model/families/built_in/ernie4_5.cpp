#include "model/families/common.h"

namespace fsdp::nn::built_in {

/// Baidu: ERNIE 4.5 Technical Report, 2025, the dense model.
Family ernie4_5() {
  return {.architecture = "ernie4_5",
          .options = kLlamaOptions + kRotaryOptions + Names{"head_dim"},
          .rotates_neighbours = true,
          .types = {{.name = "ernie4_5",
                     .model_class = "Ernie4_5ForCausalLM",
                     .sizes = {103424, 1024, 3072, 18, 16, 2, 131072},
                     .defaults = {.head_dim = 128, .rope_theta = 5e5, .tie_word_embeddings = true},
                     .gguf = {.architecture = "ernie4_5", .keys = kGgufLlama, .rotates_neighbours = true},
                     .required = R"({"use_bias": false})",
                     .written = R"({"use_bias": false, "pad_token_id": null})"}}};
}

}  // namespace fsdp::nn::built_in
