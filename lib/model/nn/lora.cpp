#include "model/nn/lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/tensor/rectangle_view.h"
#include "base/tensor/seeded_random.h"
#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/nearest_pattern.h"
#include "base/util/text.h"
#include "model/nn/layers.h"
#include "model/nn/parameter.h"

namespace fsdp::nn {
namespace {

constexpr const char* kNamesOfParts[] = {"lora_A", "lora_B", "lora_magnitude_vector"};

at::Tensor add_weight(torch::nn::Module& layer, LoraPart part, at::IntArrayRef shape) {
  const auto module =
      layer.register_module(kNamesOfParts[static_cast<size_t>(part)], std::make_shared<torch::nn::Module>());
  return module->register_parameter("weight", empty_parameter(shape));
}

/// W + s B A as [out, in] in fp32.
at::Tensor adapted_rows(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale,
                        bool transposed) {
  const at::Tensor rows = (transposed ? weight.t() : weight).to(at::kFloat);
  return rows + at::mm(b.to(at::kFloat), a.to(at::kFloat)) * scale;
}

/// 1 for a row of zeros, which has no direction.
at::Tensor norms_of(const at::Tensor& rows) {
  const at::Tensor norms = at::linalg_vector_norm(rows, 2, at::IntArrayRef{1});
  return norms.masked_fill(norms == 0, 1);
}

}  // namespace

double lora_scale(const LoraOptions& options) {
  const auto rank = static_cast<double>(options.rank);
  return options.alpha / (options.use_rslora ? std::sqrt(rank) : rank);
}

at::Tensor merged_weight(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                         const at::Tensor& magnitude, double scale, bool transposed) {
  at::NoGradGuard no_grad;
  at::Tensor rows = adapted_rows(weight, a, b, scale, transposed);
  if (magnitude.defined()) rows.mul_((magnitude.to(at::kFloat) / norms_of(rows)).unsqueeze(1));
  return transposed ? rows.t().contiguous() : rows;
}

LoraAdapter::LoraAdapter(torch::nn::Module& layer, const std::string& name, const at::Tensor& weight,
                         bool transposed, const LoraOptions& options)
    : weight_(weight),
      transposed_(transposed),
      scale_(lora_scale(options)),
      dropout_(options.dropout),
      site_(util::hash_of(0, name)) {
  const int64_t out = weight.size(transposed ? 1 : 0), in = weight.size(transposed ? 0 : 1);
  if (options.rank > std::min(in, out)) {
    fail(ErrorKind::kUsage, "lora.rank must be at most ", std::min(in, out), ", the smaller size of ", name,
         " [", out, ", ", in, "], but is ", options.rank,
         "; reduce it or leave the layer out of lora.targets");
  }
  const ParameterDevice on(weight.device());
  const ParameterType of(weight.scalar_type());
  a_ = add_weight(layer, LoraPart::kA, {options.rank, in});
  b_ = add_weight(layer, LoraPart::kB, {out, options.rank});
  if (options.dora) magnitude_ = add_weight(layer, LoraPart::kMagnitude, {out});
}

at::Tensor LoraAdapter::magnitude_ratio() const {
  at::Tensor norms;
  {
    at::NoGradGuard no_grad;
    norms = norms_of(adapted_rows(weight_, a_, b_, scale_, transposed_));
  }
  return magnitude_.to(at::kFloat) / norms;
}

at::Tensor LoraAdapter::delta(const at::Tensor& x, const at::Tensor& base, const StageContext* context,
                              kernels::Matmul matmul,
                              const std::function<at::Tensor(const at::Tensor& x)>& product) const {
  const at::Tensor kept =
      drops(context) ? dropout_at(x, dropout_, site_, *context, values_of_tokens(x, *context)) : x;
  const at::Tensor narrow = kernels::linear(kept.to(a_.scalar_type()), a_, matmul) * scale_;
  const at::Tensor low_rank = kernels::linear(narrow, b_, matmul).to(base.scalar_type());
  if (!magnitude_.defined()) return low_rank;
  const at::Tensor ratio = magnitude_ratio(), of_type = ratio.to(base.scalar_type());
  return (ratio - 1).to(base.scalar_type()) * (drops(context) ? product(kept) : base) + of_type * low_rank;
}

LoraLayers add_lora(torch::nn::Module& model, const LoraOptions& options) {
  if (options.targets.empty()) {
    fail(ErrorKind::kUsage, "lora.targets must name linear layers, but is empty; set [\"*\"] for all");
  }
  std::vector<std::pair<std::string, Linear*>> chosen;
  std::vector<std::string> names;
  for (const auto& item : model.named_modules(/*name_prefix=*/std::string(), /*include_self=*/false)) {
    auto* linear = dynamic_cast<Linear*>(item.value().get());
    if (linear == nullptr) continue;
    names.push_back(item.key());
    if (util::matches_any(item.key(), options.targets)) chosen.emplace_back(item.key(), linear);
  }
  util::require_matches(
      "lora.targets", options.targets, names,
      concat("names of linear layers",
             names.empty() ? ", of which the model has none" : " such as \"" + names.front() + "\""));
  for (at::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  LoraLayers layers;
  for (const auto& [name, linear] : chosen) {
    if (linear->parallel()) {
      fail(
          ErrorKind::kUsage, "lora: the layer ", name,
          " must be on one rank, but several compute it together (mesh.model); give the processes to mesh.data");
    }
    linear->set_adapter(
        std::make_shared<LoraAdapter>(*linear, name, linear->weight(), linear->is_transposed(), options));
    layers.push_back(name);
  }
  if (options.quantize != BaseQuantization::kNone) {
    quantize_frozen(model, options.quantize == BaseQuantization::kNf4 ? kernels::Quantization::kNf4
                                                                      : kernels::Quantization::kInt8);
  }
  return layers;
}

std::optional<LoraName> lora_name(const std::string& parameter) {
  for (const LoraPart part : {LoraPart::kA, LoraPart::kB, LoraPart::kMagnitude}) {
    const std::string ending = lora_parameter("", part);
    if (parameter.ends_with(ending)) {
      return LoraName{parameter.substr(0, parameter.size() - ending.size()), part};
    }
  }
  return std::nullopt;
}

std::string lora_parameter(const std::string& layer, LoraPart part) {
  return layer + "." + kNamesOfParts[static_cast<size_t>(part)] + ".weight";
}

void initialize_lora(const std::string& name, at::IntArrayRef sizes,
                     const std::vector<util::Rectangle>& parts, const at::Tensor& out, uint64_t seed) {
  at::NoGradGuard no_grad;
  const std::optional<LoraName> adapter = lora_name(name);
  FSDP_CHECK(adapter && adapter->part != LoraPart::kMagnitude, name);
  if (adapter->part == LoraPart::kB) {
    out.zero_();
    return;
  }
  const double bound = 1 / std::sqrt(static_cast<double>(sizes[1]));
  const at::Tensor whole = at::empty(sizes, at::TensorOptions(at::kFloat));
  whole.uniform_(-bound, bound, util::named_generator(seed, name));
  util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
    values.view({part.height(), part.length()}).copy_(util::rectangle_view(whole, part));
  });
}

}  // namespace fsdp::nn
