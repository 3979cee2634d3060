#include "nn/decoder.h"

#include <set>

#include "nn/decoder_outline.h"
#include "nn/gpt2.h"
#include "nn/llama.h"
#include "nn/parameter.h"

namespace fsdp::nn {

std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device) {
  check_decoder_options(options);
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

double training_flops_per_token(const ModelOptions& options, int64_t num_parameters,
                                int64_t sequence_length) {
  // An untied embedding table is looked up, not multiplied; a tied one is multiplied once, as the head.
  int64_t looked_up = options.tie_word_embeddings ? 0 : options.vocab_size * options.hidden_size;
  if (options.architecture == "gpt2") looked_up += options.max_position_embeddings * options.hidden_size;
  return 6.0 * static_cast<double>(num_parameters - looked_up) +
         12.0 * static_cast<double>(options.num_hidden_layers * query_width(options) * sequence_length);
}

}  // namespace fsdp::nn
