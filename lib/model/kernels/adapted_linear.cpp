#include "model/kernels/adapted_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/factor_products.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/recomputed.h"

namespace fsdp::kernels {
namespace {

/// Returns narrow^T wide in fp32, if multiplies_here(). narrow: [N, rank], wide: [N, width] -> [rank, width].
/// In fp32 it is computed by vectors, because splitting `wide` for tiles would cost more than so few
/// multiplications.
at::Tensor narrow_product(const at::Tensor& narrow, const at::Tensor& wide, Matmul matmul) {
  const ProductOf product{.c = at::empty({narrow.size(1), wide.size(1)}, wide.options().dtype(at::kFloat)),
                          .a = flipped(narrow),
                          .adds = false};
  if (has_small_products(at::kFloat) && wide.scalar_type() == at::kFloat) {
    multiply_all_into({&product, 1}, wide);
  } else {
    multiply_here({&product, 1}, wide, matmul);
  }
  return product.c;
}

/// Returns the gradient, in the parameter's type; undefined if it was written to the parameter's sink.
at::Tensor put_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  const auto place = take_gradient_place(parameter, at::kFloat);
  if (!place) return gradient.to(parameter.scalar_type()).contiguous();
  place->adds ? place->memory.add_(gradient) : place->memory.copy_(gradient);
  return {};
}

at::Tensor gradient_of_b(const at::Tensor& b, const at::Tensor& dy, const at::Tensor& narrow, Matmul matmul) {
  return multiplies_here(dy, matmul) ? put_gradient(b, flipped(narrow_product(narrow, dy, matmul)))
                                     : weight_gradient(b, flipped(dy), narrow, matmul);
}

at::Tensor side_by_side(const variable_list& parts, int64_t dimension) {
  return parts.size() == 1 ? parts[0] : at::cat(parts, dimension);
}

/// These return W^T, and W, as right factors.
at::Tensor forward_factor(const at::Tensor& weight, const AdaptedForm& form) {
  return form.transposed ? weight : flipped(weight);
}
at::Tensor backward_factor(const at::Tensor& weight, const AdaptedForm& form) {
  return form.transposed ? flipped(weight) : weight;
}

class AdaptedProducts final : public torch::autograd::Function<AdaptedProducts> {
 public:
  /// `adapters` are A and B of each layer.
  static variable_list forward(AutogradContext* context, const at::Tensor& given, at::TensorList,
                               const Parameters& weights, const Parameters& adapters, const AdaptedForm& form,
                               bool recomputed) {
    const BelowAutograd below;
    const at::Tensor x = as_matrix(given);
    variable_list saved{x}, narrow;
    for (size_t i = 0; i < weights.tensors.size(); ++i) {
      saved.insert(saved.end(),
                   {weights.tensors[i], adapters.tensors[2 * i], adapters.tensors[2 * i + 1], {}});
    }
    variable_list results = run(x, saved, form, narrow);
    for (size_t i = 0; i < results.size(); ++i) {
      results[i] = shaped(results[i], given);
      saved[4 * i + 4] = narrow[i];
    }
    save_operands(*context, std::move(saved), {{0, given}});
    if (recomputed) context->saved_data["shape"] = given.sizes();
    context->saved_data["form"] = form.quantization ? static_cast<int64_t>(*form.quantization) : int64_t{-1};
    context->saved_data["transposed"] = form.transposed;
    context->saved_data["scale"] = form.scale;
    context->saved_data["matmul"] = static_cast<int64_t>(form.matmul);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const AdaptedForm form = form_of(*context);
    const at::Tensor x = as_matrix(saved[0]);
    const size_t count = gradients.size();
    variable_list results(1 + 2 * count + 4), narrow_gradients, as;
    std::vector<Summands> of_input;
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor &weight = saved[4 * i + 1], &a = saved[4 * i + 2], &b = saved[4 * i + 3],
                       &narrow = saved[4 * i + 4];
      const at::Tensor dy = as_matrix(gradients[i]);
      at::Tensor dnarrow = product_of(dy, b, form.matmul).mul_(form.scale);
      if (context->needs_input_grad(0) && form.quantization) {
        const QuantizedWeight bytes{weight, b.size(0), a.size(1), *form.quantization};
        const at::Tensor dx = quantized_product_back(dy, bytes, form.matmul);
        results[0].defined() ? results[0].add_(dx) : results[0] = dx;
      } else if (!form.quantization) {
        of_input.push_back({dy, {backward_factor(weight, form)}});
      }
      const size_t of_b = 2 * i + 2;
      if (is_wanted(*context, of_b, b)) {
        results[of_b] = deliver(*context, of_b, b, gradient_of_b(b, dy, narrow, form.matmul));
      }
      narrow_gradients.push_back(std::move(dnarrow));
      as.push_back(a);
    }
    const at::Tensor dnarrow = side_by_side(narrow_gradients, 1);
    const bool here = multiplies_here(x, form.matmul);
    const at::Tensor das = here ? narrow_product(dnarrow, x, form.matmul) : at::Tensor();
    int64_t first = 0;
    for (size_t i = 0; i < count; first += as[i++].size(0)) {
      const at::Tensor& a = as[i];
      const size_t of_a = 2 * i + 1;
      if (!is_wanted(*context, of_a, a)) continue;
      const at::Tensor da = here ? put_gradient(a, das.narrow(0, first, a.size(0)))
                                 : weight_gradient(a, flipped(narrow_gradients[i]), x, form.matmul);
      results[of_a] = deliver(*context, of_a, a, da);
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor all_as = side_by_side(as, 0);
      if (form.quantization) {
        add_product_of(results[0], dnarrow, all_as, form.matmul);
      } else {
        of_input.push_back({dnarrow, {all_as}});
        results[0] = sums_of_products(of_input, form.matmul)[0];
      }
      results[0] = shaped(results[0], gradients[0]);
    }
    return results;
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    variable_list narrow, results = run(as_matrix(saved[0]), saved, form_of(*context), narrow);
    for (at::Tensor& result : results) result = shaped(result, context->saved_data["shape"].toIntVector());
    return results;
  }

 private:
  /// Computes the results. saved: x, and for each layer the weight, A, B and x A^T, which is not read. -> [N,
  /// out_i]; x A^T in `narrow`
  static variable_list run(const at::Tensor& x, const variable_list& saved, const AdaptedForm& form,
                           variable_list& narrow) {
    const size_t count = saved.size() / 4;
    const auto of_layer = [&saved](size_t layer, size_t which) { return saved[4 * layer + which]; };
    std::vector<at::Tensor> as;
    for (size_t i = 0; i < count; ++i) as.push_back(flipped(of_layer(i, 2)));
    narrow = products_of(x, as, form.matmul);
    for (at::Tensor& each : narrow) each.mul_(form.scale);
    if (form.quantization) {
      variable_list results;
      for (size_t i = 0; i < count; ++i) {
        const QuantizedWeight bytes{of_layer(i, 1), of_layer(i, 3).size(0), of_layer(i, 2).size(1),
                                    *form.quantization};
        results.push_back(quantized_product(x, bytes, form.matmul));
        add_product_of(results[i], narrow[i], flipped(of_layer(i, 3)), form.matmul);
      }
      return results;
    }
    std::vector<Summands> summands{{x, {}}};
    for (size_t i = 0; i < count; ++i) {
      summands[0].bs.push_back(forward_factor(of_layer(i, 1), form));
      Summands& of_adapter = summands.emplace_back(Summands{narrow[i], std::vector<at::Tensor>(count)});
      of_adapter.bs[i] = flipped(of_layer(i, 3));
    }
    return sums_of_products(summands, form.matmul);
  }

  static AdaptedForm form_of(AutogradContext& context) {
    const int64_t quantization = context.saved_data["form"].toInt();
    return {.quantization =
                quantization < 0 ? std::nullopt : std::optional(static_cast<Quantization>(quantization)),
            .transposed = context.saved_data["transposed"].toBool(),
            .scale = context.saved_data["scale"].toDouble(),
            .matmul = static_cast<Matmul>(context.saved_data["matmul"].toInt())};
  }
};

}  // namespace

bool can_adapt(const at::Tensor& given, const AdaptedWeight& layer, const AdaptedForm& form) {
  const at::Tensor x = autocast_operand(given);
  const at::ScalarType type = x.scalar_type();
  return computes_here(x, form.matmul) && layer.a.scalar_type() == type && layer.b.scalar_type() == type &&
         (form.quantization || layer.weight.scalar_type() == type) && !layer.weight.requires_grad();
}

std::vector<at::Tensor> adapted_linears(const at::Tensor& given, const std::vector<AdaptedWeight>& layers,
                                        const AdaptedForm& form, bool recomputed) {
  const at::Tensor x = autocast_operand(given);
  Parameters weights, adapters;
  for (const AdaptedWeight& layer : layers) {
    FSDP_CHECK(can_adapt(x, layer, form), x.sizes(), " ", x.scalar_type(), " by ", layer.weight.sizes());
    weights.tensors.push_back(layer.weight);
    adapters.tensors.insert(adapters.tensors.end(), {layer.a, layer.b});
  }
  const std::vector<at::Tensor> seen = seen_parameters(adapters.tensors, x);
  std::vector<at::Tensor> results =
      AdaptedProducts::apply(x, at::TensorList(seen), weights, adapters, form, recomputed);
  if (recomputed) recompute_results<AdaptedProducts>(results[0]);
  return results;
}

}  // namespace fsdp::kernels
