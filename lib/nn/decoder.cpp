#include "nn/decoder.h"

#include <ATen/ops/empty_like.h>

#include <cmath>
#include <set>
#include <utility>

#include "nn/gpt2.h"
#include "nn/llama.h"
#include "nn/parameter.h"
#include "util/error.h"

namespace fsdp::nn {
namespace {

void check_rotary(const ModelOptions& options) {
  using util::ErrorKind;
  const RopeType type = options.rope_type.value();
  if (!(options.rope_factor > 0) || (type == RopeType::kDefault && options.rope_factor != 1)) {
    util::fail(ErrorKind::kUsage, "rope_factor ", options.rope_factor, " must be ",
               type == RopeType::kDefault ? "1 with rope_type default" : "above 0");
  }
  if (type == RopeType::kLlama3 &&
      !(options.rope_low_freq_factor < options.rope_high_freq_factor && options.rope_original_length >= 1)) {
    util::fail(ErrorKind::kUsage, "rope_low_freq_factor ", options.rope_low_freq_factor,
               " must be less than rope_high_freq_factor ", options.rope_high_freq_factor,
               ", and rope_original_length ", options.rope_original_length, " at least 1");
  }
}

void check_sizes(const ModelOptions& options) {
  if (options.vocab_size < 1 || options.hidden_size < 1 || options.intermediate_size < 1 ||
      options.num_hidden_layers < 1 || options.num_attention_heads < 1 || options.num_key_value_heads < 1 ||
      options.max_position_embeddings < 1) {
    util::fail(util::ErrorKind::kUsage, "every size of a model must be at least 1; check the model options");
  }
}

void check_heads(const ModelOptions& options) {
  if (options.head_dim == 0 && options.hidden_size % options.num_attention_heads != 0) {
    util::fail(util::ErrorKind::kUsage, "hidden_size ", options.hidden_size,
               " must be a multiple of num_attention_heads ", options.num_attention_heads);
  }
}

void check_llama(const ModelOptions& options) {
  using util::ErrorKind;
  check_heads(options);
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
}

void check_gpt2(const ModelOptions& options) {
  check_heads(options);
  if (options.head_dim > 0 || options.attention_bias || options.qkv_bias || options.mlp_bias ||
      options.sliding_window > 0 || options.rope_type != RopeType::kDefault ||
      options.hidden_act != Activation::kSilu) {
    util::fail(util::ErrorKind::kUsage,
               "head_dim, attention_bias, qkv_bias, mlp_bias, hidden_act, sliding_window and rope_type are "
               "llama's; leave them out for gpt2");
  }
}

/// GPT-2 paper, section 2.3.
double gpt2_deviation(const std::string& name, const ModelOptions& options) {
  if (!name.ends_with("c_proj.weight")) return options.initializer_range;
  return options.initializer_range / std::sqrt(2.0 * static_cast<double>(options.num_hidden_layers));
}

template <typename Model>
std::shared_ptr<Stage> make(const ModelOptions& options) {
  return std::make_shared<Model>(options);
}

util::Registry<ModelKind>& kinds() {
  static util::Registry<ModelKind> kinds(
      "model", {{"llama", {.make = make<Llama>, .check = check_llama}},
                {"gpt2", {.make = make<Gpt2>, .check = check_gpt2, .deviation = gpt2_deviation}}});
  return kinds;
}

/// What did not ask empty_parameter().
void move_parameters(torch::nn::Module& model, at::Device device) {
  for (at::Tensor& parameter : model.parameters()) {
    if (parameter.device().type() == device.type()) continue;
    const at::Tensor moved = at::empty_like(parameter, parameter.options().device(device));
    // set_data() takes a tensor on meta only for one that is there already.
    parameter.unsafeGetTensorImpl()->_change_backend_component_keys(device);
    parameter.set_data(moved);
  }
}

}  // namespace

void register_model(const std::string& name, Architecture architecture, ModelKind kind) {
  FSDP_CHECK(kind.make != nullptr, name);
  architectures().add(name, std::move(architecture));
  kinds().add(name, std::move(kind));
}

const ModelKind& model_kind(const std::string& architecture) {
  return kinds().get(architecture, "model architecture");
}

std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device) {
  const ModelKind& kind = model_kind(options.architecture);
  check_sizes(options);
  if (kind.check) kind.check(options);
  ParameterDevice parameters_on(device);
  std::shared_ptr<Stage> model = kind.make(options);
  FSDP_CHECK(model != nullptr, options.architecture);
  move_parameters(*model, device);
  return model;
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
