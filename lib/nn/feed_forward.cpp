#include "nn/feed_forward.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

namespace fsdp::nn {

SwiGlu::SwiGlu(const ModelOptions& options) {
  int64_t hidden = options.hidden_size, inner = options.intermediate_size;
  gate_proj_ = register_module("gate_proj", std::make_shared<Linear>(hidden, inner));
  up_proj_ = register_module("up_proj", std::make_shared<Linear>(hidden, inner));
  down_proj_ = register_module("down_proj", std::make_shared<Linear>(inner, hidden));
}

at::Tensor SwiGlu::compute(const at::Tensor& x, const StageContext&) {
  return down_proj_->forward(at::silu(gate_proj_->forward(x)) * up_proj_->forward(x));
}

GeluFeedForward::GeluFeedForward(const ModelOptions& options) {
  c_fc_ = register_module("c_fc",
                          std::make_shared<TransposedLinear>(options.hidden_size, options.intermediate_size));
  c_proj_ = register_module(
      "c_proj", std::make_shared<TransposedLinear>(options.intermediate_size, options.hidden_size));
}

at::Tensor GeluFeedForward::compute(const at::Tensor& x, const StageContext&) {
  return c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh"));
}

}  // namespace fsdp::nn
