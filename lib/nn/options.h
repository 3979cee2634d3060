#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::nn {

/// Shape of a decoder-only language model; the names are Hugging Face's (config.json of Llama and GPT-2).
struct ModelOptions {
  std::string architecture = "llama";  ///< "llama" or "gpt2"
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 688;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 8;
  int64_t num_key_value_heads = 8;  ///< llama only; fewer than heads: grouped-query attention
  int64_t max_position_embeddings = 1024;
  double rope_theta = 10000.0;       ///< llama only
  double rms_norm_eps = 1e-5;        ///< llama's RMSNorm
  double layer_norm_epsilon = 1e-5;  ///< gpt2's LayerNorm
  double initializer_range = 0.02;   ///< standard deviation of the initial weights
  bool tie_word_embeddings = false;  ///< the head uses the embedding's weight
  std::string init_from;  ///< a .safetensors file, a folder of them, or a checkpoint; empty: random
  bool init_broadcast =
      false;  ///< rank 0 alone reads or makes the first weights and sends them to the others

  // How, not what: training.fused_kernels and training.matmul.
  bool fused_kernels = true;    ///< kernels/fused.h; off: libtorch's operations, composed by autograd
  std::string matmul = "auto";  ///< of fp32 products on the CPU, see kernels/matmul.h
};

/// Which activations backward computes again in place of keeping them.
struct CheckpointingOptions {
  std::string mode = "none";                         ///< "none" or "full": all of a stage but its input
  std::vector<std::string> stage_types = {"block"};  ///< with "full": Stage::type_name() of the stages
};

}  // namespace fsdp::nn
