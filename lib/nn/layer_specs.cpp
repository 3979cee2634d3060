#include "nn/layer_specs.h"

namespace fsdp::nn {

std::vector<LinearSpec> attention_layers(const ModelOptions& options) {
  const int64_t hidden = options.hidden_size;
  if (options.architecture == "gpt2") {
    return {{.name = "c_attn", .in = hidden, .out = 3 * hidden, .biased = true, .transposed = true},
            {.name = "c_proj", .in = hidden, .out = hidden, .biased = true, .transposed = true}};
  }
  const int64_t queries = query_width(options), keys = key_width(options);
  const bool biased = options.attention_bias || options.qkv_bias;
  return {{.name = "q_proj", .in = hidden, .out = queries, .biased = biased},
          {.name = "k_proj", .in = hidden, .out = keys, .biased = biased},
          {.name = "v_proj", .in = hidden, .out = keys, .biased = biased},
          {.name = "o_proj", .in = queries, .out = hidden, .biased = options.attention_bias}};
}

FeedForwardSpec feed_forward_spec(const ModelOptions& options) {
  const int64_t hidden = options.hidden_size, inner = options.intermediate_size;
  if (options.architecture == "gpt2") {
    return {.inputs = {{.name = "c_fc", .in = hidden, .out = inner, .biased = true, .transposed = true}},
            .activation = Activation::kGeluTanh,
            .output = {.name = "c_proj", .in = inner, .out = hidden, .biased = true, .transposed = true},
            .has_fused_kernel = true};
  }
  const bool biased = options.mlp_bias;
  return {.inputs = {{.name = "gate_proj", .in = hidden, .out = inner, .biased = biased},
                     {.name = "up_proj", .in = hidden, .out = inner, .biased = biased}},
          .activation = options.hidden_act,
          .output = {.name = "down_proj", .in = inner, .out = hidden, .biased = biased},
          .has_fused_kernel = options.hidden_act == Activation::kSilu};
}

}  // namespace fsdp::nn
