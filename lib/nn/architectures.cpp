#include "nn/architectures.h"

namespace fsdp::nn {

util::Registry<Architecture>& architectures() {
  static util::Registry<Architecture> architectures(
      "model", {{"llama",
                 {.keys = {"model.num_key_value_heads", "model.head_dim", "model.attention_bias",
                           "model.qkv_bias", "model.mlp_bias", "model.hidden_act", "model.rope_theta",
                           "model.rope_type", "model.sliding_window", "model.rope_factor",
                           "model.rms_norm_eps", "model.rope_low_freq_factor", "model.rope_high_freq_factor",
                           "model.rope_original_length"}}},
                {"gpt2", {.keys = {"model.layer_norm_epsilon"}}}});
  return architectures;
}

bool is_built_in_architecture(std::string_view name) {
  const Architecture* architecture = architectures().find(name);
  return architecture != nullptr && architecture->plugin.empty();
}

util::Registry<LossFunction>& losses() {
  static util::Registry<LossFunction> losses("loss", {{kCrossEntropy, nullptr}});
  return losses;
}

}  // namespace fsdp::nn
