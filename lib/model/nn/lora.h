#pragma once

// LoRA (Hu et al.: LoRA: Low-rank adaptation of large language models, 2021): linear layers get adapters, two
// narrow matrices each, which are trained in place of the model's weights.
//
//   y = W x + s B A x           A: [rank, in], B: [out, rank], s = alpha / rank
//   rsLoRA (Kalajdzievski: A rank stabilization scaling factor, 2023): s = alpha / sqrt(rank)
//   DoRA (Liu et al.: DoRA: Weight-decomposed low-rank adaptation, 2024): y = m (W + s B A) x / n, where m
//   [out] is trained and n are the norms of the rows of W + s B A, which count as constants in backward
//
// Parameters have the names that PEFT (github.com/huggingface/peft) gives them: those of the layer, which
// keep their own, and LAYER.lora_A.weight, LAYER.lora_B.weight, LAYER.lora_magnitude_vector.weight.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/util/rectangle.h"
#include "model/families/options.h"
#include "model/kernels/matmul.h"
#include "model/nn/stage.h"

namespace fsdp::nn {

/// The scale s above.
double lora_scale(const LoraOptions& options);

/// Weight with which the layer computes the same without an adapter, in fp32: W + s B A; with DoRA
/// m (W + s B A) / n. `weight` is [out, in], or [in, out] where `transposed`; the result is alike. magnitude:
/// undefined without DoRA.
at::Tensor merged_weight(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                         const at::Tensor& magnitude, double scale, bool transposed);

/// The adapter of one layer.
class LoraAdapter {
 public:
  /// Registers its parameters in the layer, named `name`, whose weight is `weight`.
  LoraAdapter(torch::nn::Module& layer, const std::string& name, const at::Tensor& weight, bool transposed,
              const LoraOptions& options);

  /// Term that the adapter adds to `base`, the layer's result for x without a bias. `product` computes such a
  /// result. x: [..., in], base: [..., out] -> [..., out]. `context`: null outside of training, where nothing
  /// is dropped. Needs `base` in backward only with DoRA.
  at::Tensor delta(const at::Tensor& x, const at::Tensor& base, const StageContext* context,
                   kernels::Matmul matmul,
                   const std::function<at::Tensor(const at::Tensor& x)>& product) const;
  bool has_magnitude() const { return magnitude_.defined(); }
  /// Whether the adapter adds s B A x without dropout, so that kernels::adapted_linears() can compute it.
  bool is_plain(const StageContext* context) const { return !has_magnitude() && !drops(context); }
  const at::Tensor& a() const { return a_; }
  const at::Tensor& b() const { return b_; }
  double scale() const { return scale_; }

 private:
  bool drops(const StageContext* context) const {
    return dropout_ > 0 && context != nullptr && context->dropout;
  }
  /// The ratio m / n.
  at::Tensor magnitude_ratio() const;

  at::Tensor weight_;  ///< weight of the layer
  bool transposed_;
  double scale_, dropout_;
  uint64_t site_;                 ///< number of the place at which it drops values
  at::Tensor a_, b_, magnitude_;  ///< magnitude_: undefined without DoRA
};

/// Names of the layers with adapters, in the order of the model.
using LoraLayers = std::vector<std::string>;

/// Gives adapters without values to the linear layers (nn::Linear) whose names match options.targets, and
/// freezes all other parameters, which options.quantize makes bytes (quantize_frozen()). Requires: the model
/// is not sharded yet. Throws Error(kUsage) for a pattern that matches no layer, for a rank that exceeds a
/// layer's smaller size, and for layers that several ranks compute together.
LoraLayers add_lora(torch::nn::Module& model, const LoraOptions& options);

/// Parameters of an adapter.
enum class LoraPart { kA, kB, kMagnitude };
struct LoraName {
  std::string layer;
  LoraPart part;
};
/// Part for which the parameter's name stands; nothing for parameters of other kinds.
std::optional<LoraName> lora_name(const std::string& parameter);
/// The name of an adapter's parameter.
std::string lora_parameter(const std::string& layer, LoraPart part);

/// Parts of the first values of lora_A or lora_B, one after another, as PEFT draws them: A as
/// torch.nn.Linear's weights (uniform within 1 / sqrt(in)), B 0. They depend on the seed and the name alone.
/// out: 1-D, fp32, in host memory.
void initialize_lora(const std::string& name, at::IntArrayRef sizes,
                     const std::vector<util::Rectangle>& parts, const at::Tensor& out, uint64_t seed);

}  // namespace fsdp::nn
