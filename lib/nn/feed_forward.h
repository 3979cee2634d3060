#pragma once

// The position-wise feed-forward parts of the decoder blocks. Shapes: x: [B, T, D] -> [B, T, D].

#include "nn/linear.h"
#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// Llama's: down(activation(gate(x)) * up(x)) (Shazeer: GLU Variants Improve Transformer, 2020).
class GatedFeedForward final : public Stage {
 public:
  explicit GatedFeedForward(const ModelOptions& options);
  std::string type_name() const override { return "feed_forward"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  Compute compute_;
  Activation activation_;
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

/// GPT-2's: c_proj(gelu(c_fc(x))) with the tanh approximation of GELU, as its weights were trained with.
class GeluFeedForward final : public Stage {
 public:
  explicit GeluFeedForward(const ModelOptions& options);
  std::string type_name() const override { return "feed_forward"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  Compute compute_;
  std::shared_ptr<TransposedLinear> c_fc_, c_proj_;
};

}  // namespace fsdp::nn
