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

}  // namespace fsdp::nn
