#include "plan/flops.h"

namespace fsdp::plan {

TokenFlops forward_flops(const nn::ModelOptions& model, int64_t sequence_length) {
  const bool llama = model.architecture == "llama";
  const double width = static_cast<double>(model.hidden_size);
  const double inner = static_cast<double>(model.intermediate_size);
  const double queries = llama ? static_cast<double>(nn::query_width(model)) : width;
  const double keys = llama ? static_cast<double>(nn::key_width(model)) : width;
  const double length = static_cast<double>(sequence_length);
  return {.attention = 4 * width * (queries + keys) + 4 * length * queries,
          .feed_forward = 2 * (llama ? 3 : 2) * width * inner,
          .head = 2 * width * static_cast<double>(model.vocab_size)};
}

double model_flops_a_token(const nn::ModelOptions& model, int64_t sequence_length) {
  const TokenFlops token = forward_flops(model, sequence_length);
  const double blocks = static_cast<double>(model.num_hidden_layers);
  return 3 * (blocks * (token.attention + token.feed_forward) + token.head);
}

}  // namespace fsdp::plan
