#include "nn/decoder.h"

#include <set>

#include "nn/gpt2.h"
#include "nn/llama.h"
#include "nn/parameter.h"
#include "util/error.h"

namespace fsdp::nn {
namespace {

void check_shapes(const ModelOptions& options) {
  using util::ErrorKind;
  if (options.vocab_size < 1 || options.hidden_size < 1 || options.intermediate_size < 1 ||
      options.num_hidden_layers < 1 || options.num_attention_heads < 1 || options.num_key_value_heads < 1 ||
      options.max_position_embeddings < 1) {
    util::fail(ErrorKind::kUsage, "every size of a model must be at least 1; check the model options");
  }
  if (options.hidden_size % options.num_attention_heads != 0) {
    util::fail(ErrorKind::kUsage, "hidden_size ", options.hidden_size,
               " must be a multiple of num_attention_heads ", options.num_attention_heads);
  }
  if (options.architecture == "llama") {
    if (options.num_attention_heads % options.num_key_value_heads != 0) {
      util::fail(ErrorKind::kUsage, "num_attention_heads ", options.num_attention_heads,
                 " must be a multiple of num_key_value_heads ", options.num_key_value_heads);
    }
    if (options.hidden_size / options.num_attention_heads % 2 != 0) {
      util::fail(ErrorKind::kUsage,
                 "hidden_size / num_attention_heads = ", options.hidden_size / options.num_attention_heads,
                 " must be even for rotary positions");
    }
  }
}

}  // namespace

std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device) {
  check_shapes(options);
  ParameterDevice parameters_on(device);
  if (options.architecture == "llama") return std::make_shared<Llama>(options);
  if (options.architecture == "gpt2") return std::make_shared<Gpt2>(options);
  util::fail(util::ErrorKind::kUsage, "unknown model architecture \"", options.architecture,
             "\"; expected llama or gpt2");
}

int64_t count_parameters(const torch::nn::Module& module) {
  std::set<const void*> seen;
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) count += parameter.numel();
  }
  return count;
}

double training_flops_per_token(const ModelOptions& options, int64_t num_parameters,
                                int64_t sequence_length) {
  // An untied embedding table is looked up, not multiplied; a tied one is multiplied once, as the head.
  int64_t looked_up = options.tie_word_embeddings ? 0 : options.vocab_size * options.hidden_size;
  if (options.architecture == "gpt2") looked_up += options.max_position_embeddings * options.hidden_size;
  return 6.0 * static_cast<double>(num_parameters - looked_up) +
         12.0 * static_cast<double>(options.num_hidden_layers * options.hidden_size * sequence_length);
}

}  // namespace fsdp::nn
