#include "nn/feed_forward.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "kernels/fused.h"

namespace fsdp::nn {

GatedFeedForward::GatedFeedForward(const ModelOptions& options) : compute_(options) {
  const FeedForwardSpec spec = feed_forward_spec(options);
  activation_ = spec.activation;
  has_fused_kernel_ = spec.has_fused_kernel;
  gate_proj_ = register_linear<Linear>(*this, spec.inputs[0], compute_);
  up_proj_ = register_linear<Linear>(*this, spec.inputs[1], compute_);
  down_proj_ = register_linear<Linear>(*this, spec.output, compute_);
}

at::Tensor GatedFeedForward::compute(const at::Tensor& x, const StageContext&) {
  const auto both = forward_all(x, {gate_proj_.get(), up_proj_.get()});
  const at::Tensor &gate = both[0], &up = both[1];
  if (has_fused_kernel_ && compute_.fused && kernels::can_fuse(gate)) {
    return down_proj_->forward(kernels::swiglu(gate, up));
  }
  const bool is_silu = activation_ == Activation::kSilu;
  return down_proj_->forward((is_silu ? at::silu(gate) : at::gelu(gate, "tanh")) * up);
}

GeluFeedForward::GeluFeedForward(const ModelOptions& options) : compute_(options) {
  const FeedForwardSpec spec = feed_forward_spec(options);
  c_fc_ = register_linear<TransposedLinear>(*this, spec.inputs[0], compute_);
  c_proj_ = register_linear<TransposedLinear>(*this, spec.output, compute_);
}

at::Tensor GeluFeedForward::compute(const at::Tensor& x, const StageContext&) {
  if (compute_.fused && kernels::can_fuse(x)) {
    return c_proj_->forward(kernels::bias_gelu(c_fc_->forward_without_bias(x), c_fc_->bias()));
  }
  return c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh"));
}

}  // namespace fsdp::nn
