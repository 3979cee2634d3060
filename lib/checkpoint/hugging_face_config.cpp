#include "checkpoint/hugging_face_config.h"

namespace fsdp::checkpoint {

nlohmann::json hugging_face_config(const nn::ModelOptions& options) {
  nlohmann::json config = {{"vocab_size", options.vocab_size},
                           {"initializer_range", options.initializer_range},
                           {"tie_word_embeddings", options.tie_word_embeddings},
                           {"torch_dtype", "float32"}};
  if (options.architecture == "gpt2") {
    config.update({{"architectures", {"GPT2LMHeadModel"}},
                   {"model_type", "gpt2"},
                   {"n_embd", options.hidden_size},
                   {"n_inner", options.intermediate_size},
                   {"n_layer", options.num_hidden_layers},
                   {"n_head", options.num_attention_heads},
                   {"n_positions", options.max_position_embeddings},
                   {"layer_norm_epsilon", options.layer_norm_epsilon},
                   {"activation_function", "gelu_new"},
                   {"attn_pdrop", 0.0},
                   {"embd_pdrop", 0.0},
                   {"resid_pdrop", 0.0}});
  } else {
    config.update({{"architectures", {"LlamaForCausalLM"}},
                   {"model_type", "llama"},
                   {"hidden_size", options.hidden_size},
                   {"intermediate_size", options.intermediate_size},
                   {"num_hidden_layers", options.num_hidden_layers},
                   {"num_attention_heads", options.num_attention_heads},
                   {"num_key_value_heads", options.num_key_value_heads},
                   {"max_position_embeddings", options.max_position_embeddings},
                   {"rms_norm_eps", options.rms_norm_eps},
                   {"rope_theta", options.rope_theta},
                   {"hidden_act", "silu"},
                   {"attention_bias", false},
                   {"mlp_bias", false}});
  }
  return config;
}

}  // namespace fsdp::checkpoint
