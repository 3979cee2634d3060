#pragma once

// Configs that tests plan.

#include <string>
#include <vector>

#include "setup/config/load.h"
#include "support/source_folder.h"

namespace fsdp::testing {

/// Some MiB a rank: activations, weights and buffers all count.
inline config::Config small_config(const std::string& architecture = "llama") {
  config::Config config;
  config.model.architecture = architecture;
  config.model.vocab_size = 512;
  config.model.hidden_size = 128;
  config.model.intermediate_size = architecture == "llama" ? 352 : 512;
  config.model.num_attention_heads = config.model.num_key_value_heads = 4;
  config.model.num_hidden_layers = 3;
  config.model.max_position_embeddings = 128;
  config.data.train = {"none.bin"};
  config.data.sequence_length = 64;
  config.data.micro_batch_size = 2;
  config.fsdp.min_num_params = 100'000;
  config.training.device = "cpu";  // what is measured here
  return config;
}

/// One of configs/plan.
inline config::Config plan_config(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return config::load_config(testing::source_folder() + "/configs/plan/" + name + ".toml", overrides);
}

inline void muon(config::Config& config) {
  config.optimizer.name = "muon";
  config.optimizer.momentum = 0.95;
  config.data.sequence_length = 16;
}

inline void lamb(config::Config& config) {
  config.optimizer.name = "lamb";
  config.data.sequence_length = 16;
}

inline void adafactor(config::Config& config) {
  config.optimizer.name = "adafactor";
  config.data.sequence_length = 16;
}

inline void global(config::Config& config) {
  config.fsdp.strategy = "hybrid_shard";
  config.fsdp.hybrid_optimizer = "global";
  config.mesh.dcn = 2;
}
inline void bf16(config::Config& config) { config.mixed_precision.param_dtype = "bfloat16"; }
inline void stored_in_bf16(config::Config& config) {
  bf16(config);
  config.fsdp.param_storage = "bfloat16";
}
inline void float8(config::Config& config) {
  bf16(config);
  config.training.float8 = "tensorwise";
}
inline void lora(config::Config& config) {
  config.lora.rank = 8;
  config.lora.alpha = 16;
}
inline void selective(config::Config& config) {
  config.activation_checkpointing.mode = "selective";
  config.activation_checkpointing.memory_budget = 0.3;
}
inline void recompute(config::Config& config) { config.activation_checkpointing.mode = "full"; }

}  // namespace fsdp::testing
