#include "nn/decoder.h"

#include <set>

#include "nn/gpt2.h"
#include "nn/llama.h"
#include "nn/parameter.h"
#include "util/error.h"

namespace fsdp::nn {
namespace {

void check_rotary(const ModelOptions& options) {
  using util::ErrorKind;
  const std::string& type = options.rope_type;
  if (type != "default" && type != "linear" && type != "llama3") {
    util::fail(ErrorKind::kUsage, "unknown rope_type \"", type, "\"; expected default, linear or llama3");
  }
  if (!(options.rope_factor > 0) || (type == "default" && options.rope_factor != 1)) {
    util::fail(ErrorKind::kUsage, "rope_factor ", options.rope_factor, " must be ",
               type == "default" ? "1 with rope_type default" : "above 0");
  }
  if (type == "llama3" &&
      !(options.rope_low_freq_factor < options.rope_high_freq_factor && options.rope_original_length >= 1)) {
    util::fail(ErrorKind::kUsage, "rope_low_freq_factor ", options.rope_low_freq_factor,
               " must be less than rope_high_freq_factor ", options.rope_high_freq_factor,
               ", and rope_original_length ", options.rope_original_length, " at least 1");
  }
}

void check_options(const ModelOptions& options) {
  using util::ErrorKind;
  if (options.vocab_size < 1 || options.hidden_size < 1 || options.intermediate_size < 1 ||
      options.num_hidden_layers < 1 || options.num_attention_heads < 1 || options.num_key_value_heads < 1 ||
      options.max_position_embeddings < 1) {
    util::fail(ErrorKind::kUsage, "every size of a model must be at least 1; check the model options");
  }
  if (options.head_dim == 0 && options.hidden_size % options.num_attention_heads != 0) {
    util::fail(ErrorKind::kUsage, "hidden_size ", options.hidden_size,
               " must be a multiple of num_attention_heads ", options.num_attention_heads);
  }
  if (options.architecture == "llama") {
    if (options.num_attention_heads % options.num_key_value_heads != 0) {
      util::fail(ErrorKind::kUsage, "num_attention_heads ", options.num_attention_heads,
                 " must be a multiple of num_key_value_heads ", options.num_key_value_heads);
    }
    if (head_width(options) % 2 != 0) {
      util::fail(ErrorKind::kUsage, "the width of a head, ", head_width(options),
                 ", must be even for rotary positions");
    }
    check_rotary(options);
    if (options.qkv_bias + options.attention_bias + (options.sliding_window > 0) > 1 ||
        (options.mlp_bias && (options.qkv_bias || options.sliding_window > 0))) {
      util::fail(ErrorKind::kUsage,
                 "no family of models has this combination: qkv_bias (Qwen2), sliding_window (Mistral), and "
                 "attention_bias or mlp_bias (Llama) exclude each other");
    }
  } else if (options.architecture != "gpt2") {
    util::fail(ErrorKind::kUsage, "unknown model architecture \"", options.architecture,
               "\"; expected llama or gpt2");
  } else if (options.head_dim > 0 || options.attention_bias || options.qkv_bias || options.mlp_bias ||
             options.sliding_window > 0 || options.rope_type != "default" ||
             options.hidden_act != Activation::kSilu) {
    util::fail(ErrorKind::kUsage,
               "head_dim, attention_bias, qkv_bias, mlp_bias, hidden_act, sliding_window and rope_type are "
               "llama's; leave them out for gpt2");
  }
}

}  // namespace

std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device) {
  check_options(options);
  ParameterDevice parameters_on(device);
  if (options.architecture == "llama") return std::make_shared<Llama>(options);
  return std::make_shared<Gpt2>(options);
}

int64_t count_parameters(const torch::nn::Module& module) {
  std::set<const void*> seen;
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) count += parameter.numel();
  }
  return count;
}

}  // namespace fsdp::nn
