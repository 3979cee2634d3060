#include "plan/flops.h"

#include "nn/layer_specs.h"

namespace fsdp::plan {
namespace {

double of_layers(const std::vector<nn::LinearSpec>& layers) {
  double flops = 0;
  for (const nn::LinearSpec& layer : layers) {
    flops += 2 * static_cast<double>(layer.in) * static_cast<double>(layer.out);
  }
  return flops;
}

}  // namespace

TokenFlops forward_flops(const nn::ModelOptions& model, int64_t sequence_length) {
  const std::vector<nn::LinearSpec> attention = nn::attention_layers(model);
  const double queries = static_cast<double>(attention.back().in);
  return {.attention = of_layers(attention) + 4 * static_cast<double>(sequence_length) * queries,
          .feed_forward = of_layers(nn::feed_forward_spec(model).layers()),
          .head = 2 * static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size)};
}

double model_flops_a_token(const nn::ModelOptions& model, int64_t sequence_length) {
  const TokenFlops token = forward_flops(model, sequence_length);
  const double blocks = static_cast<double>(model.num_hidden_layers);
  return 3 * (blocks * (token.attention + token.feed_forward) + token.head);
}

}  // namespace fsdp::plan
