#include "nn/initialize.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <set>

#include "util/seeded_random.h"

namespace fsdp::nn {
namespace {

bool ends_with(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() &&
         text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

void initialize_parameter(const std::string& name, const at::Tensor& parameter, const ModelOptions& options,
                          uint64_t seed) {
  at::NoGradGuard no_grad;
  if (parameter.dim() < 2) {
    parameter.fill_(ends_with(name, "bias") ? 0.0 : 1.0);
    return;
  }
  double deviation = options.initializer_range;
  if (options.architecture == "gpt2" && ends_with(name, "c_proj.weight")) {
    deviation /= std::sqrt(2.0 * static_cast<double>(options.num_hidden_layers));
  }
  parameter.normal_(0.0, deviation, util::named_generator(seed, name));
}

void initialize_parameters(torch::nn::Module& module, const ModelOptions& options, uint64_t seed) {
  std::set<const void*> done;
  for (const auto& parameter : module.named_parameters()) {
    if (!done.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
    initialize_parameter(parameter.key(), parameter.value(), options, seed);
  }
}

}  // namespace fsdp::nn
