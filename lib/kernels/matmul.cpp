#include "kernels/matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <span>
#include <string_view>
#include <utility>

#include "kernels/below_autograd.h"
#include "kernels/block_product.h"
#include "kernels/fused.h"
#include "kernels/gradient_sink.h"
#include "kernels/meta.h"
#include "kernels/reduce.h"
#include "kernels/tile_product.h"
#include "util/autocast.h"
#include "util/error.h"
#include "util/matrix_units.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Before the first product of the process.
[[maybe_unused]] const bool checked_tiles = util::keep_onednn_from_broken_tiles();

Matmul fastest_here() {
  if (util::has_matrix_unit()) return Matmul::kAmx;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Matmul::kOneDnn;
#endif
  return Matmul::kMkl;
}

// ---- products without autograd. Factors: a: [N, K], b: [K, M], of any strides

/// With fewer rows, packing a weight does not pay.
constexpr int64_t kLeastRows = 64;
bool has_few_rows(const at::Tensor& a) { return a.size(0) < kLeastRows; }

bool is_cpu_float(const at::Tensor& x) { return is_for_cpu(x) && x.scalar_type() == at::kFloat; }

bool goes_to_tiles(const at::Tensor& x, Matmul matmul) {
  return matmul == Matmul::kAmx && x.numel() > 0 && can_multiply_by_tiles(x);
}

bool is_packed_for_tiles(const at::Tensor& a, Matmul matmul) {
  return goes_to_tiles(a, matmul) && !has_few_rows(a);
}

/// a b^T + bias
at::Tensor onednn_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  if (a.is_meta()) {
    note_product(a.size(0), b.size(0), a.size(1));
    if (!a.is_contiguous()) a.contiguous();  // transposed factors are copied
    if (!b.is_contiguous()) b.contiguous();
    return at::empty({a.size(0), b.size(0)}, a.options());
  }
  using Operator =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                 c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto linear_pointwise =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Operator>();
  return linear_pointwise.call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

/// Whether a layer's products with x are computed here, in backward too; else by autograd and libtorch.
bool computes_here(const at::Tensor& x, Matmul matmul) {
  if (x.numel() == 0) return false;
  if (is_for_cuda(x)) return can_fuse(x);
  if (matmul == Matmul::kMkl) return false;
  // In bf16 without tiles, only the gradient of the weight is computed here.
  return is_cpu_float(x) || goes_to_tiles(x, matmul) ||
         (is_for_cpu(x) && x.scalar_type() == at::kBFloat16 && has_small_products(at::kBFloat16));
}

/// Whether multiply_here() supports this type.
bool multiplies_here(const at::Tensor& x, Matmul matmul) {
  return goes_to_tiles(x, matmul) || (is_for_cpu(x) && has_small_products(x.scalar_type()));
}

/// Computes products on the CPU, in blocks or by tiles. Their results are fp32 or, by tiles, bf16.
void multiply_here(std::span<const ProductOf> products, const at::Tensor& b, Matmul matmul) {
  if (!goes_to_tiles(b, matmul)) return multiply_all_into(products, b);
  TileProducts by_tiles{.rights = {b}};
  for (const ProductOf& product : products) {
    by_tiles.lefts.push_back(product.a);
    by_tiles.results.push_back({.c = product.c, .adds = product.adds});
  }
  multiply_by_tiles(by_tiles);
}

void multiply_here(const ProductOf& product, const at::Tensor& b, Matmul matmul) {
  multiply_here(std::span(&product, 1), b, matmul);
}

/// a b (+ bias)
at::Tensor product_of(const at::Tensor& a, const at::Tensor& b, Matmul matmul,
                      const std::optional<at::Tensor>& bias = std::nullopt) {
  const bool is_float = is_cpu_float(a);
  if (!is_float && !is_packed_for_tiles(a, matmul)) return bias ? at::addmm(*bias, a, b) : at::mm(a, b);
  if (is_float && (has_few_rows(a) || !multiplies_here(a, matmul))) return onednn_product(a, b.t(), bias);
  const bool begins_with_bias = bias && is_float;
  at::Tensor product = begins_with_bias ? bias->expand({a.size(0), b.size(1)}).contiguous()
                                        : at::empty({a.size(0), b.size(1)}, a.options());
  if (bias && !is_float) {
    multiply_by_tiles({.lefts = {a}, .rights = {b}, .results = {{.c = product, .bias = bias->contiguous()}}});
  } else {
    multiply_here({.c = product, .a = a, .adds = begins_with_bias}, b, matmul);
  }
  return product;
}

/// a b_i for each b.
std::vector<at::Tensor> products_of(const at::Tensor& a, const std::vector<at::Tensor>& bs, Matmul matmul) {
  std::vector<at::Tensor> results;
  if (!is_packed_for_tiles(a, matmul)) {
    for (const at::Tensor& b : bs) results.push_back(product_of(a, b, matmul));
    return results;
  }
  TileProducts products{.lefts = {a}, .rights = bs};
  for (const at::Tensor& b : bs) {
    results.push_back(at::empty({a.size(0), b.size(1)}, a.options()));
    products.results.push_back({.c = results.back()});
  }
  multiply_by_tiles(products);
  return results;
}

/// sum += a b, in the sum's type; an undefined sum is 0.
void add_product_of(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  if (!sum.defined()) {
    sum = product_of(a, b, matmul);
  } else if (!is_cpu_float(a) && !is_packed_for_tiles(a, matmul)) {
    sum.addmm_(a, b);
  } else if (has_few_rows(a)) {
    sum.add_(product_of(a, b, matmul));
  } else {
    multiply_here({.c = sum, .a = a, .adds = true}, b, matmul);
  }
}

/// Whether multiply_in_place() supports this left factor.
bool multiplies_in_place(const at::Tensor& a, Matmul matmul) {
  return is_for_cuda(a) || is_packed_for_tiles(a, matmul);
}

/// c = a b or, with `adds`, c += a b, by cuBLAS or by tiles; c is fp32 or has the type of a and b.
void multiply_in_place(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds, Matmul matmul) {
  if (!is_for_cuda(a)) {
    multiply_here({.c = c, .a = a, .adds = adds}, b, matmul);
  } else if (c.scalar_type() == a.scalar_type()) {
    adds ? at::addmm_out(c, c, a, b) : at::mm_out(c, a, b);
  } else {
    if (a.is_meta()) return note_product(a.size(0), b.size(1), a.size(1));
    adds ? at::addmm_out(c, c, a, b, c.scalar_type()) : at::mm_out(c, a, b, c.scalar_type());
  }
}

/// a b; undefined if it was written to the weight's sink (gradient_sink.h).
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                           Matmul matmul) {
  const bool on_cuda = is_for_cuda(a);
  std::optional<GradientSink::Place> place;
  if (on_cuda || multiplies_here(a, matmul)) place = take_gradient_place(weight, at::kFloat);
  if (on_cuda && !place) place = take_gradient_place(weight, a.scalar_type());
  if (!place) return product_of(a, b, matmul);
  multiply_in_place(place->memory, a, b, place->adds, matmul);
  return {};
}

/// Gradients of several weights, each of which is a product with b.
class GradientsWith {
 public:
  GradientsWith(const at::Tensor& b, Matmul matmul)
      : b_(b), matmul_(matmul), waits_(multiplies_here(b, matmul)) {}

  /// As weight_gradient(), but sinks may be written to by finish() only.
  at::Tensor add(const at::Tensor& weight, const at::Tensor& a) {
    if (!waits_) return weight_gradient(weight, a, b_, matmul_);
    const auto place = take_gradient_place(weight, at::kFloat);
    if (!place) return product_of(a, b_, matmul_);
    // If the same weight comes twice, the second gradient is added to the first.
    for (const ProductOf& other : products_) {
      if (other.c.data_ptr() == place->memory.data_ptr()) finish();
    }
    products_.push_back({.c = place->memory, .a = a, .adds = place->adds});
    return {};
  }
  void finish() { multiply_here(std::exchange(products_, {}), b_, matmul_); }

 private:
  const at::Tensor& b_;
  Matmul matmul_;
  bool waits_;
  std::vector<ProductOf> products_;
};

// ---- autograd

/// y = x W + b with W = weight^T or, where `transposed`, the weight. x: [..., in]
class WeightProduct final : public torch::autograd::Function<WeightProduct> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor&,
                            const at::Tensor&, const Parameters& parameters, bool transposed, Matmul matmul) {
    const BelowAutograd below;
    const at::Tensor &weight = parameters.tensors[0], &bias = parameters.tensors[1];
    const at::Tensor x = as_matrix(given), w = transposed ? weight : flipped(weight);
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight, bias});
    context->saved_data["transposed"] = transposed;
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    const auto added = bias.defined() ? std::optional(bias) : std::nullopt;
    return shaped(product_of(x, w, matmul, added), given);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const bool transposed = context->saved_data["transposed"].toBool();
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const at::Tensor dy = as_matrix(gradients[0]);
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) {
      dx = shaped(product_of(dy, transposed ? flipped(weight) : weight, matmul), gradients[0]);
    }
    if (is_wanted(*context, 1, weight)) {
      dweight = transposed ? weight_gradient(weight, flipped(x), dy, matmul)
                           : weight_gradient(weight, flipped(dy), x, matmul);
      dweight = deliver(*context, 1, weight, dweight);
    }
    if (bias.defined() && is_wanted(*context, 2, bias)) {
      dbias = deliver(*context, 2, bias, gradient_of_bias(dy, bias));
    }
    return {dx, dweight, dbias, {}, {}, {}};
  }
};

at::Tensor weight_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          bool transposed, Matmul matmul) {
  return WeightProduct::apply(x, seen_parameter(weight, x), seen_parameter(bias, x),
                              Parameters{{weight, bias}}, transposed, matmul);
}

/// y_i = x W_i^T. x: [..., in]
class ProductsOfOne final : public torch::autograd::Function<ProductsOfOne> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& given, at::TensorList,
                               const Parameters& parameters, Matmul matmul) {
    const BelowAutograd below;
    const at::Tensor x = as_matrix(given);
    variable_list saved{any_is_trained(parameters.tensors) ? x : at::Tensor()};
    std::vector<at::Tensor> transposed;
    for (const at::Tensor& weight : parameters.tensors) {
      saved.push_back(weight);
      transposed.push_back(flipped(weight));
    }
    context->save_for_backward(std::move(saved));
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    variable_list results = products_of(x, transposed, matmul);
    for (at::Tensor& result : results) result = shaped(result, given);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    variable_list results(saved.size() + 2);
    std::optional<GradientsWith> of_weights;
    if (saved[0].defined()) of_weights.emplace(saved[0], matmul);
    for (size_t i = 1; i < saved.size(); ++i) {
      const at::Tensor dy = as_matrix(gradients[i - 1]);
      if (is_wanted(*context, i, saved[i])) {
        results[i] = deliver(*context, i, saved[i], of_weights->add(saved[i], flipped(dy)));
      }
      if (context->needs_input_grad(0)) add_product_of(results[0], dy, saved[i], matmul);
    }
    if (of_weights) of_weights->finish();
    if (results[0].defined()) results[0] = shaped(results[0], gradients[0]);
    return results;
  }
};

}  // namespace

Matmul matmul_by_name(const std::string& name) {
  if (name == "mkl") return Matmul::kMkl;
  if (name == "onednn") return Matmul::kOneDnn;
  if (name == "amx") {
    if (util::has_matrix_unit()) return Matmul::kAmx;
    util::fail(util::ErrorKind::kUsage,
               "training.matmul = \"amx\" requires a matrix unit (AMX in bf16) that this process "
               "may use, but the machine has none; set \"auto\"");
  }
  if (name == "auto") return fastest_here();
  util::fail(util::ErrorKind::kUsage, "training.matmul must be auto, mkl, onednn or amx, but is \"", name,
             "\"");
}

const char* name_of(Matmul matmul) {
  return matmul == Matmul::kAmx ? "amx" : matmul == Matmul::kOneDnn ? "onednn" : "mkl";
}

at::Tensor autocast_operand(const at::Tensor& x) {
  const auto type = util::autocast_type(x.device());
  return type && x.is_floating_point() ? x.to(*type) : x;
}

at::Tensor linear(const at::Tensor& given, const at::Tensor& given_weight, Matmul matmul) {
  const at::Tensor x = autocast_operand(given), weight = autocast_operand(given_weight);
  if (!computes_here(x, matmul)) return at::linear(x, weight);
  return weight_product(x, weight, {}, false, matmul);
}

std::vector<at::Tensor> linears(const at::Tensor& given, const std::vector<at::Tensor>& given_weights,
                                Matmul matmul) {
  const at::Tensor x = autocast_operand(given);
  std::vector<at::Tensor> weights, results;
  for (const at::Tensor& weight : given_weights) weights.push_back(autocast_operand(weight));
  if (!computes_here(x, matmul) || !(is_for_cuda(x) || multiplies_here(x, matmul))) {
    for (const at::Tensor& weight : weights) results.push_back(linear(x, weight, matmul));
    return results;
  }
  const std::vector<at::Tensor> seen = seen_parameters(weights, x);
  return ProductsOfOne::apply(x, at::TensorList(seen), Parameters{weights}, matmul);
}

at::Tensor transposed_linear(const at::Tensor& given, const at::Tensor& given_weight,
                             const std::optional<at::Tensor>& given_bias, Matmul matmul) {
  const at::Tensor x = autocast_operand(given), weight = autocast_operand(given_weight);
  const auto bias = given_bias ? std::optional(autocast_operand(*given_bias)) : std::nullopt;
  if (!computes_here(x, matmul)) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(1);
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    return (bias ? at::addmm(*bias, rows, weight) : at::mm(rows, weight)).view(shape);
  }
  return weight_product(x, weight, bias.value_or(at::Tensor()), true, matmul);
}

at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

at::Tensor shaped(const at::Tensor& product, const at::Tensor& like) {
  if (like.dim() == 2) return product;
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = product.size(1);
  return at::_unsafe_view(product, shape);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  return !is_for_cuda(a) && computes_here(a, matmul) ? product_of(a, flipped(b), matmul)
                                                     : at::mm(a, flipped(b));
}

void product_into(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  at::Tensor c = to;
  if (multiplies_in_place(a, matmul)) {
    multiply_in_place(c, a, flipped(b), false, matmul);
  } else {
    c.copy_(product(a, b, matmul));
  }
}

void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  at::NoGradGuard no_grad;
  if (multiplies_in_place(a, matmul)) {
    const bool adds = sum.defined();
    if (!adds) sum = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kFloat));
    multiply_in_place(sum, a, flipped(b), adds, matmul);
  } else if (const at::Tensor part = product(a, b, matmul); sum.defined()) {
    sum.add_(part);
  } else {
    sum = part.to(at::kFloat);
  }
}

}  // namespace fsdp::kernels
