#include "nn/feed_forward.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "kernels/fused.h"

namespace fsdp::nn {

SwiGlu::SwiGlu(const ModelOptions& options) : compute_(options) {
  auto linear = [&](int64_t in, int64_t out) {
    return std::make_shared<Linear>(in, out, compute_, options.mlp_bias);
  };
  int64_t hidden = options.hidden_size, inner = options.intermediate_size;
  gate_proj_ = register_module("gate_proj", linear(hidden, inner));
  up_proj_ = register_module("up_proj", linear(hidden, inner));
  down_proj_ = register_module("down_proj", linear(inner, hidden));
}

at::Tensor SwiGlu::compute(const at::Tensor& x, const StageContext&) {
  const auto both = forward_all(x, {gate_proj_.get(), up_proj_.get()});
  const at::Tensor &gate = both[0], &up = both[1];
  const bool fused = compute_.fused && kernels::can_fuse(gate);
  return down_proj_->forward(fused ? kernels::swiglu(gate, up) : at::silu(gate) * up);
}

GeluFeedForward::GeluFeedForward(const ModelOptions& options) : compute_(options) {
  int64_t hidden = options.hidden_size, inner = options.intermediate_size;
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
