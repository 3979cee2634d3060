#include "model/kernels/gelu_feed_forward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/factor_products.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/product_choices.h"
#include "model/kernels/product_epilogues.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/reduce.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {
namespace {

class GeluFeedForward final : public torch::autograd::Function<GeluFeedForward> {
 public:
  /// Numbers of the parameters among the operands, and among what is saved, where others come before them.
  enum : size_t { kUp = 1, kUpBias, kDown, kDownBias };
  enum : size_t { kInput, kInner, kActivated, kParameters };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor&,
                            const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const Parameters& parameters, Matmul matmul, Addend* addend) {
    const BelowAutograd below;
    const std::vector<at::Tensor>& layers = parameters.tensors;
    const at::Tensor &up = layers[0], &up_bias = layers[1], &down = layers[2], &down_bias = layers[3];
    const at::Tensor x = as_matrix(given);
    const at::Tensor inner = at::empty({x.size(0), up.size(1)}, x.options()), y = at::empty_like(inner);
    const auto by_two = [&] {
      multiply_on_gpu(inner, x, up, /*adds=*/false);
      KernelsFor(x)->bias_gelu({.x = inner.data_ptr(),
                                .bias = up_bias.data_ptr(),
                                .y = y.data_ptr(),
                                .rows = rows_of(inner),
                                .width = up_bias.size(0)});
    };
    const bool at_once = multiply_if_chosen(
        {.c = y, .a = x, .b = up, .bias = up_bias, .epilogue = cuda::Epilogue::kGelu, .beside = inner},
        by_two);
    if (!at_once) by_two();
    const at::Tensor result = addend != nullptr ? product_with(y, down, down_bias, *addend)
                                                : product_of(y, down, matmul, down_bias);
    save_operands(*context, {x, inner, y, up, up_bias, down, down_bias}, {{kInput, given}});
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    context->saved_data["inner_has_bias"] = at_once;
    context->saved_data["added"] = addend != nullptr && addend->is_added;
    return shaped(result, given);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const at::Tensor dy = as_matrix(gradients[0]);
    variable_list results(9);
    at::Tensor dinner = at::empty_like(saved[kInner]);
    const std::optional<ParameterSums> sums = through_gelu(*context, saved, dy, matmul, dinner);
    of_layer(*context, saved, kDown, {saved[kActivated], dy, nullptr}, matmul, results);
    if (context->needs_input_grad(kInput)) {
      results[kInput] = shaped(product_of(dinner, flipped(parameter(saved, kUp)), matmul), gradients[0]);
    }
    of_layer(*context, saved, kUp, {as_matrix(saved[kInput]), dinner, sums ? &*sums : nullptr}, matmul,
             results);
    if (context->saved_data["added"].toBool()) results[kDownBias + 1] = gradients[0];
    return results;
  }

 private:
  static const at::Tensor& parameter(const variable_list& saved, size_t operand) {
    return saved[kParameters + operand - kUp];
  }

  /// Computes the gradient of what gelu gets. Returns the sums for its bias, if our kernel computed them.
  static std::optional<ParameterSums> through_gelu(AutogradContext& context, const variable_list& saved,
                                                   const at::Tensor& dy, Matmul matmul, at::Tensor& dinner) {
    const at::Tensor &inner = saved[kInner], &bias = parameter(saved, kUpBias);
    const at::Tensor back = flipped(parameter(saved, kDown));
    const bool has_bias = context.saved_data["inner_has_bias"].toBool();
    const auto by_two = [&] {
      const at::Tensor missing = has_bias ? at::zeros_like(bias) : bias;
      const at::Tensor dactivated = product_of(dy, back, matmul);
      ParameterSums sums(inner, 1);
      KernelsFor(inner)->bias_gelu_backward({.dy = dactivated.data_ptr(),
                                             .x = inner.data_ptr(),
                                             .bias = missing.data_ptr(),
                                             .dx = dinner.data_ptr(),
                                             .dbias = sums.of(0),
                                             .rows = rows_of(inner),
                                             .width = bias.size(0)},
                                            sums.parts());
      return sums;
    };
    // If the product of forward did not add the bias, the library cannot compute the gradient here.
    const bool at_once = multiply_if_chosen({.c = dinner,
                                             .a = dy,
                                             .b = back,
                                             .epilogue = cuda::Epilogue::kGeluGradient,
                                             .beside = inner,
                                             .only_tries = !has_bias},
                                            by_two);
    return at_once ? std::nullopt : std::optional(by_two());
  }

  /// Input of a layer, the gradient of its result, and the sums for the bias's gradient, if they are known.
  struct LayerPass {
    at::Tensor x, dy;
    const ParameterSums* sums;
  };
  /// Sets the gradients of the weight `operand` and of the bias behind it.
  static void of_layer(AutogradContext& context, const variable_list& saved, size_t operand,
                       const LayerPass& pass, Matmul matmul, variable_list& results) {
    const auto& [x, dy, sums] = pass;
    const at::Tensor &weight = parameter(saved, operand), &bias = parameter(saved, operand + 1);
    const bool wants_weight = is_wanted(context, operand, weight),
               wants_bias = is_wanted(context, operand + 1, bias);
    std::optional<LayerGradients> both;
    if (wants_weight && wants_bias) {
      both = gradients_at_once(weight, bias, x, dy, /*only_tries=*/sums != nullptr);
    }
    if (wants_weight) {
      results[operand] = deliver(context, operand, weight,
                                 both ? both->weight : weight_gradient(weight, flipped(x), dy, matmul));
    }
    if (!wants_bias) return;
    at::Tensor dbias;
    if (both) {
      dbias = both->bias;
    } else {
      dbias = sums != nullptr ? sums->gradients({bias})[0] : gradient_of_bias(dy, bias);
    }
    results[operand + 1] = deliver(context, operand + 1, bias, dbias);
  }
};

}  // namespace

bool can_feed_forward(const at::Tensor& x, const GeluFeedForwardLayers& layers) {
  if (product_choices(x.device()) == nullptr || SampleSums::current() != nullptr) return false;
  const std::array tensors{&layers.up, &layers.up_bias, &layers.down, &layers.down_bias};
  return can_fuse(x) && x.numel() > 0 && std::ranges::all_of(tensors, [&](const at::Tensor* each) {
           return each->defined() && each->scalar_type() == x.scalar_type() && each->is_contiguous();
         });
}

at::Tensor gelu_feed_forward(const at::Tensor& x, const GeluFeedForwardLayers& layers, Matmul matmul,
                             Addend* addend) {
  FSDP_CHECK(can_feed_forward(x, layers));
  const std::vector<at::Tensor> parameters{layers.up, layers.up_bias, layers.down, layers.down_bias};
  const std::vector<at::Tensor> seen = seen_parameters(parameters, x);
  return GeluFeedForward::apply(x, seen[0], seen[1], seen[2], seen[3],
                                addend != nullptr ? addend->x : seen_parameter({}, x), Parameters{parameters},
                                matmul, addend);
}

}  // namespace fsdp::kernels
