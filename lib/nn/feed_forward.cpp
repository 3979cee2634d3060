#include "nn/feed_forward.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "kernels/fused.h"

namespace fsdp::nn {

GatedFeedForward::GatedFeedForward(const ModelOptions& options)
    : compute_(options), activation_(options.hidden_act) {
  const FeedForwardSpec spec = feed_forward_spec(options);
  gate_proj_ = register_linear<Linear>(*this, spec.inputs[0], compute_);
  up_proj_ = register_linear<Linear>(*this, spec.inputs[1], compute_);
  down_proj_ = register_linear<Linear>(*this, spec.output, compute_);
}

at::Tensor GatedFeedForward::compute(const at::Tensor& x, const StageContext&) {
  const auto both = forward_all(x, {gate_proj_.get(), up_proj_.get()});
  const at::Tensor &gate = both[0], &up = both[1];
  if (activation_ == Activation::kGeluTanh) return down_proj_->forward(at::gelu(gate, "tanh") * up);
  const bool fused = compute_.fused && kernels::can_fuse(gate);
  return down_proj_->forward(fused ? kernels::swiglu(gate, up) : at::silu(gate) * up);
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
