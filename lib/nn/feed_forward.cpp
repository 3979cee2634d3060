#include "nn/feed_forward.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "kernels/fused.h"

namespace fsdp::nn {

GatedFeedForward::GatedFeedForward(const ModelOptions& options)
    : compute_(options), activation_(options.hidden_act) {
  const auto linear = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, std::make_shared<Linear>(in, out, compute_, options.mlp_bias));
  };
  gate_proj_ = linear("gate_proj", options.hidden_size, options.intermediate_size);
  up_proj_ = linear("up_proj", options.hidden_size, options.intermediate_size);
  down_proj_ = linear("down_proj", options.intermediate_size, options.hidden_size);
}

at::Tensor GatedFeedForward::compute(const at::Tensor& x, const StageContext&) {
  const auto both = forward_all(x, {gate_proj_.get(), up_proj_.get()});
  const at::Tensor &gate = both[0], &up = both[1];
  const bool is_silu = activation_ == Activation::kSilu;
  if (is_silu && compute_.fused && kernels::can_fuse(gate)) {
    return down_proj_->forward(kernels::swiglu(gate, up));
  }
  return down_proj_->forward((is_silu ? at::silu(gate) : at::gelu(gate, "tanh")) * up);
}

GeluFeedForward::GeluFeedForward(const ModelOptions& options) : compute_(options) {
  const int64_t hidden = options.hidden_size, inner = options.intermediate_size;
  c_fc_ = register_module("c_fc", std::make_shared<TransposedLinear>(hidden, inner, compute_));
  c_proj_ = register_module("c_proj", std::make_shared<TransposedLinear>(inner, hidden, compute_));
}

at::Tensor GeluFeedForward::compute(const at::Tensor& x, const StageContext&) {
  if (compute_.fused && kernels::can_fuse(x)) {
    return c_proj_->forward(kernels::bias_gelu(c_fc_->forward_without_bias(x), c_fc_->bias()));
  }
  return c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh"));
}

}  // namespace fsdp::nn
