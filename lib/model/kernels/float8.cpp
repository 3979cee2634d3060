#include "model/kernels/float8.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/DeviceGuard.h>

#include <charconv>
#include <limits>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/products.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/joined_weights.h"
#include "model/kernels/meta.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/reduce.h"

namespace fsdp::kernels {
namespace {

constexpr at::ScalarType kForward = at::kFloat8_e4m3fn, kBackward = at::kFloat8_e5m2;

float largest_number(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn ? cuda::kLargestNumber<c10::Float8_e4m3fn>
                                    : cuda::kLargestNumber<c10::Float8_e5m2>;
}

cuda::Float8Rounding rounding_of(const at::Tensor& x, at::ScalarType type, const Float8Matrix& to) {
  return {.x = x.const_data_ptr(),
          .values = to.values.defined() ? to.values.data_ptr() : nullptr,
          .transposed = to.transposed.defined() ? to.transposed.data_ptr() : nullptr,
          .rows = x.size(0),
          .width = x.size(1),
          .is_e5m2 = type == at::kFloat8_e5m2};
}

Float8Matrix empty_float8(const at::Tensor& x, at::ScalarType type, const Float8Orders& orders) {
  Float8Matrix to;
  if (orders.values) to.values = at::empty({x.size(0), x.size(1)}, x.options().dtype(type));
  if (orders.transposed) to.transposed = at::empty({x.size(1), x.size(0)}, x.options().dtype(type));
  return to;
}

Float8Matrix rounded_on_gpu(const at::Tensor& x, const at::Tensor& largest, at::ScalarType type,
                            const Float8Orders& orders) {
  const c10::DeviceGuard guard(x.device());
  Float8Matrix result = empty_float8(x, type, orders);
  result.inverse_scale = result.inverse_scale_of_transposed = at::empty({}, largest.options());
  if (x.is_meta()) return result;
  cuda::Float8Rounding rounding = rounding_of(x, type, result);
  rounding.largest = largest.const_data_ptr<float>();
  rounding.inverse_scale = result.inverse_scale.data_ptr<float>();
  cuda::round_to_float8(rounding);
  return result;
}

/// The largest magnitude of each row (dim 1) or column (dim 0). x: [N, M] -> fp32 [N, 1] or [1, M]
at::Tensor largest_along(const at::Tensor& x, int64_t dim) {
  return at::linalg_vector_norm(x.detach(), std::numeric_limits<double>::infinity(),
                                at::OptionalIntArrayRef(dim), true, at::kFloat);
}

Float8Matrix rounded_by_rows_on_gpu(const at::Tensor& x, const Float8Orders& orders) {
  const c10::DeviceGuard guard(x.device());
  Float8Matrix result = empty_float8(x, kForward, orders);
  at::Tensor of_rows, of_columns;
  if (orders.values) {
    of_rows = largest_along(x, 1);
    result.inverse_scale = at::empty({x.size(0), 1}, of_rows.options());
  }
  if (orders.transposed) {
    of_columns = largest_along(x, 0);
    result.inverse_scale_of_transposed = at::empty({x.size(1), 1}, of_columns.options());
  }
  if (x.is_meta()) return result;
  cuda::Float8Rounding rounding = rounding_of(x, kForward, result);
  rounding.by_rows = true;
  if (orders.values) {
    rounding.largest = of_rows.const_data_ptr<float>();
    rounding.inverse_scale = result.inverse_scale.data_ptr<float>();
  }
  if (orders.transposed) {
    rounding.largest_of_columns = of_columns.const_data_ptr<float>();
    rounding.inverse_scale_of_columns = result.inverse_scale_of_transposed.data_ptr<float>();
  }
  cuda::round_to_float8(rounding);
  return result;
}

void check_roundable(const at::Tensor& x) {
  FSDP_CHECK(x.dim() == 2 && (x.is_contiguous() || x.is_meta()) && x.scalar_type() == at::kBFloat16,
             x.sizes());
}

at::Tensor rounded_after(const at::Tensor& scale, const at::Tensor& x, at::ScalarType type) {
  const float most = largest_number(type);
  return x.to(at::kFloat).mul_(scale).clamp_(-most, most).to(type);
}

/// The powers of 2 below the scales for these magnitudes; NaN where a magnitude is not finite.
at::Tensor scale_of_rows(const at::Tensor& largest) {
  const at::Tensor scale =
      at::div(at::full_like(largest, largest_number(kForward)), largest.clamp_min(cuda::kLeastMagnitude));
  at::Tensor power = scale.view(at::kInt).bitwise_and(0x7F800000).view(at::kFloat);
  return power.add_(largest.sub(largest));  // 0 or NaN
}

/// A factor of a product, with the summed index last.
struct Factor {
  const at::Tensor& values;
  const at::Tensor& inverse_scale;
};
Factor in_order(const Float8Matrix& x, bool transposed) {
  if (transposed) return {x.transposed, x.inverse_scale_of_transposed};
  return {x.values, x.inverse_scale};
}

/// Returns the tensor with the alignment that cuBLASLt assumes by default, since at::_scaled_mm does not pass
/// the actual alignment. The allocator's memory has it; parameters in a gathered FSDP unit and places in a
/// gradient buffer may not.
bool is_aligned(const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 256 == 0; }

/// Returns a b^T + bias. a: [N, K], b: [M, K]
struct Product {
  Factor a, b;
  Matmul matmul = Matmul::kMkl;
  /// Lets cuBLASLt accumulate partial sums in fewer bits than fp32; for forward only, as in torchao.
  bool fast = false;

  at::Tensor of_type(at::ScalarType type, const std::optional<at::Tensor>& bias = std::nullopt) const {
    if (a.values.is_meta()) note();
    if (is_for_cuda(a.values)) {
      if (a.values.is_meta()) {
        return at::empty({a.values.size(0), b.values.size(0)}, a.inverse_scale.options().dtype(type));
      }
      const auto added = bias && !is_aligned(*bias) ? bias->clone() : bias;
      return at::_scaled_mm(a.values, b.values.t(), a.inverse_scale, scale_of_columns(), added, std::nullopt,
                            type, fast);
    }
    at::Tensor sums = multiplied(a.values.to(at::kFloat), b.values.to(at::kFloat));
    sums.mul_(a.inverse_scale).mul_(scale_of_columns());
    if (bias) sums.add_(*bias);
    return sums.to(type);
  }

  void note() const {
    note_product(a.values.size(0), b.values.size(0), b.values.size(1), ProductKind::kFloat8);
  }

  void put(const GradientSink::SinkPlace& place) const {
    const bool by_tensors = a.inverse_scale.dim() == 0;
    if (by_tensors && put_at_once(place)) return;
    // Not all of libtorch's kernels with a scale for each row write fp32.
    const at::Tensor part = of_type(by_tensors ? place.memory.scalar_type() : at::kBFloat16);
    place.adds ? place.memory.add_(part) : place.memory.copy_(part);
  }

 private:
  at::Tensor scale_of_columns() const {
    return b.inverse_scale.dim() == 0 ? b.inverse_scale : b.inverse_scale.t();
  }

  /// Lets the product's kernel write to the place. Returns false where none can.
  bool put_at_once(const GradientSink::SinkPlace& place) const {
    at::Tensor to = place.memory;
    if (!is_for_cuda(to)) return false;
    if (to.is_meta()) {
      note();
    } else if (!place.adds && is_aligned(to)) {
      at::_scaled_mm_out(to, a.values, b.values.t(), a.inverse_scale, b.inverse_scale, std::nullopt,
                         std::nullopt, to.scalar_type(), fast);
    } else {
      return cuda::multiply_as_proposed({.c = to,
                                         .a = a.values,
                                         .b = b.values.t(),
                                         .adds = place.adds,
                                         .scale_of_a = a.inverse_scale,
                                         .scale_of_b = b.inverse_scale});
    }
    return true;
  }

  /// Returns a b^T in fp32.
  at::Tensor multiplied(const at::Tensor& left, const at::Tensor& right) const {
    if (!left.is_meta()) return product(left, right, matmul);
    return at::empty({left.size(0), right.size(0)}, left.options());
  }
};

/// Returns the product as the weight's gradient; undefined if it was written to the weight's sink.
at::Tensor float8_weight_gradient(const at::Tensor& weight, const Product& product) {
  auto place = take_gradient_place(weight, at::kFloat);
  if (!place) place = take_gradient_place(weight, weight.scalar_type());
  if (!place) return product.of_type(weight.scalar_type());
  product.put(*place);
  return {};
}

/// What a pass computes, as numbers that autograd's context keeps.
struct Float8Pass {
  Float8Way way;
  bool transposed = false;  ///< y = x W + b
  bool joins = false;       ///< the weights are one matrix

  void keep(AutogradContext& context) const {
    context.saved_data["scaling"] = static_cast<int64_t>(way.scaling);
    context.saved_data["matmul"] = static_cast<int64_t>(way.matmul);
    context.saved_data["transposed"] = transposed;
    context.saved_data["joins"] = joins;
  }
  static Float8Pass of(AutogradContext& context) {
    return {.way = {.scaling = static_cast<Float8Scaling>(context.saved_data["scaling"].toInt()),
                    .matmul = static_cast<Matmul>(context.saved_data["matmul"].toInt())},
            .transposed = context.saved_data["transposed"].toBool(),
            .joins = context.saved_data["joins"].toBool()};
  }

  /// The largest magnitude, if backward can use it too.
  at::Tensor largest(const at::Tensor& x) const {
    return way.scaling == Float8Scaling::kTensor ? largest_magnitude(x) : at::Tensor();
  }
  Float8Matrix rounded(const at::Tensor& x, const at::Tensor& largest, at::ScalarType type,
                       const Float8Orders& orders) const {
    return way.scaling == Float8Scaling::kTensor ? to_float8(x, largest, type, orders)
                                                 : to_float8_by_rows(x, orders);
  }
  /// The matrices that x is multiplied with.
  variable_list matrices(at::TensorList weights) const {
    return joins ? variable_list{joined(weights)} : weights.vec();
  }
};

/// Computes y_i = x W_i^T, these side by side, or x W_i + b. x: [N, in]
class Float8Products final : public torch::autograd::Function<Float8Products> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& given, at::TensorList,
                               const std::optional<at::Tensor>& bias, const Parameters& parameters,
                               const Float8Pass& pass) {
    const BelowAutograd below;
    const at::Tensor x = given.contiguous();
    const at::Tensor largest = pass.largest(x);
    // Backward needs x in the other order: its numbers in 8 bits take half of the memory of x. The weight is
    // gathered for backward.
    const bool is_needed = any_is_trained(parameters.tensors);
    const bool is_kept = is_needed && pass.way.kept == KeptInput::kRounded && !is_recomputed(given);
    const Float8Matrix x8 = pass.rounded(x, largest, kForward, {.values = true, .transposed = is_kept});
    variable_list saved{is_needed && !is_kept ? x : at::Tensor(), largest, bias.value_or(at::Tensor()),
                        x8.transposed, is_kept ? x8.inverse_scale_of_transposed : at::Tensor()};
    saved.insert(saved.end(), parameters.tensors.begin(), parameters.tensors.end());
    variable_list products;
    for (const at::Tensor& matrix : pass.matrices(parameters.tensors)) {
      const at::Tensor largest_of_matrix = pass.largest(matrix);
      const Float8Matrix w8 = pass.rounded(matrix, largest_of_matrix, kForward,
                                           {.values = !pass.transposed, .transposed = pass.transposed});
      const Product product{.a = in_order(x8, false),
                            .b = in_order(w8, pass.transposed),
                            .matmul = pass.way.matmul,
                            .fast = true};
      products.push_back(product.of_type(x.scalar_type(), bias));
      saved.push_back(largest_of_matrix);
    }
    save_operands(*context, std::move(saved), {{0, given}});
    pass.keep(*context);
    context->saved_data["weights"] = static_cast<int64_t>(parameters.tensors.size());
    return products;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const Float8Pass pass = Float8Pass::of(*context);
    const auto count = static_cast<size_t>(context->saved_data["weights"].toInt());
    const at::TensorList weights = at::TensorList(saved).slice(5, count);
    const at::Tensor &largest = saved[1], &bias = saved[2];
    Float8Matrix x8{
        .values = {}, .transposed = saved[3], .inverse_scale = {}, .inverse_scale_of_transposed = saved[4]};
    // Gradients of x, the weights, the bias; none of the last two arguments.
    variable_list results(count + 4);
    const variable_list matrices = pass.matrices(weights);
    for (size_t i = 0; i < matrices.size(); ++i) {
      const at::TensorList of_matrix = pass.joins ? weights : weights.slice(i, 1);
      const at::Tensor dy = gradients[i].contiguous();
      const bool of_x = context->needs_input_grad(0), of_weight = is_any_wanted(*context, 1 + i, of_matrix);
      const Float8Matrix dy8 =
          pass.rounded(dy, pass.largest(dy), kBackward, {.values = of_x, .transposed = of_weight});
      if (of_x) {
        const Float8Matrix w8 = pass.rounded(matrices[i], saved[5 + count + i], kForward,
                                             {.values = pass.transposed, .transposed = !pass.transposed});
        const Product product{
            .a = in_order(dy8, false), .b = in_order(w8, !pass.transposed), .matmul = pass.way.matmul};
        const at::Tensor dx = product.of_type(at::kBFloat16);
        results[0] = results[0].defined() ? results[0].add_(dx) : dx;
      }
      if (of_weight) {
        if (!x8.transposed.defined()) {
          x8 = pass.rounded(saved[0].contiguous(), largest, kForward, {.values = false, .transposed = true});
        }
        const Factor by_x = in_order(x8, true), by_dy = in_order(dy8, true);
        const Product product{.a = pass.transposed ? by_x : by_dy,
                              .b = pass.transposed ? by_dy : by_x,
                              .matmul = pass.way.matmul};
        deliver_all(*context, 1 + i, of_matrix, product, results);
      }
      if (bias.defined() && context->needs_input_grad(1 + count)) {
        results[1 + count] = gradient_of_bias(dy, bias);
      }
    }
    return results;
  }

 private:
  static bool is_any_wanted(const AutogradContext& context, size_t first, at::TensorList weights) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (is_wanted(context, first + i, weights[i])) return true;
    }
    return false;
  }

  /// Delivers the gradient of a matrix to its weights, which are the operands from `first` on.
  static void deliver_all(const AutogradContext& context, size_t first, at::TensorList weights,
                          const Product& product, variable_list& results) {
    if (weights.size() == 1) {
      results[first] = deliver(context, first, weights[0], float8_weight_gradient(weights[0], product));
      return;
    }
    bool all_wanted = true;
    for (size_t i = 0; i < weights.size(); ++i) {
      all_wanted = all_wanted && is_wanted(context, first + i, weights[i]);
    }
    const at::ScalarType type = weights[0].scalar_type();
    if (const auto place = all_wanted ? take_joined_place(weights, at::kFloat, type) : std::nullopt) {
      return product.put(*place);
    }
    int64_t row = 0;
    for (size_t i = 0; i < weights.size(); row += weights[i++].size(0)) {
      const at::Tensor& weight = weights[i];
      if (!is_wanted(context, first + i, weight)) continue;
      const at::Tensor rows = product.a.values.narrow(0, row, weight.size(0));
      const at::Tensor scale = product.a.inverse_scale.dim() == 0
                                   ? product.a.inverse_scale
                                   : product.a.inverse_scale.narrow(0, row, weight.size(0));
      Product part{.a = {rows, scale}, .b = product.b, .matmul = product.matmul};
      results[first + i] = deliver(context, first + i, weight, float8_weight_gradient(weight, part));
    }
  }
};

variable_list multiplied_in_float8(const at::Tensor& rows, const std::vector<at::Tensor>& weights,
                                   const std::optional<at::Tensor>& bias, const Float8Pass& pass) {
  const std::vector<at::Tensor> seen = seen_parameters(weights, rows);
  return Float8Products::apply(rows, at::TensorList(seen), bias, Parameters{weights}, pass);
}

/// x: [N, M] -> [..., M] with the leading sizes of `like`
at::Tensor with_leading_sizes(const at::Tensor& x, const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = x.size(1);
  return x.view(shape);
}

}  // namespace

bool fits_float8(at::IntArrayRef weight) {
  return weight.size() == 2 && weight[0] > 0 && weight[1] > 0 && weight[0] % kFloat8Multiple == 0 &&
         weight[1] % kFloat8Multiple == 0;
}

bool can_multiply_float8(const at::Tensor& x, const at::Tensor& weight) {
  return (is_for_cpu(x) || is_for_cuda(x)) && x.scalar_type() == at::kBFloat16 &&
         weight.scalar_type() == at::kBFloat16 && x.numel() > 0 &&
         x.numel() / x.size(-1) % kFloat8Multiple == 0 && fits_float8(weight.sizes());
}

std::vector<at::Tensor> float8_linears(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                       const Float8Way& way) {
  variable_list results =
      multiplied_in_float8(x.reshape({-1, x.size(-1)}), weights, std::nullopt, {.way = way});
  for (at::Tensor& result : results) result = with_leading_sizes(result, x);
  return results;
}

at::Tensor float8_joined_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const Float8Way& way) {
  FSDP_CHECK(weights[0].is_meta() || lie_in_sequence(weights));
  const variable_list results =
      multiplied_in_float8(x.reshape({-1, x.size(-1)}), weights, std::nullopt, {.way = way, .joins = true});
  return with_leading_sizes(results[0], x);
}

at::Tensor float8_transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, const Float8Way& way) {
  return multiplied_in_float8(x, {weight}, bias, {.way = way, .transposed = true})[0];
}

bool has_float8_units(const std::string& capability) {
  int major = 0, minor = 0;
  const char* end = capability.data() + capability.size();
  const auto of_major = std::from_chars(capability.data(), end, major);
  if (of_major.ptr != end) std::from_chars(of_major.ptr + 1, end, minor);
  return major >= 9 || (major == 8 && minor == 9);
}

void require_float8(const std::string& key, const at::Device& device) {
  if (!device.is_cuda()) return;
  const util::CudaDevice gpu = util::cuda_device(device.index());
  if (has_float8_units(gpu.capability)) return;
  fail(ErrorKind::kUsage, key,
       " requires a GPU of compute capability 8.9, 9.0 or later, whose matrix units have "
       "8-bit floating point, but ",
       gpu.name, " has ", gpu.capability, "; leave it out");
}

at::Tensor largest_magnitude(const at::Tensor& x) {
  return at::linalg_vector_norm(x.detach(), std::numeric_limits<double>::infinity(),
                                at::OptionalIntArrayRef(), false, at::kFloat);
}

Float8Matrix to_float8(const at::Tensor& x, const at::Tensor& largest, at::ScalarType type,
                       const Float8Orders& orders) {
  at::NoGradGuard no_grad;
  check_roundable(x);
  FSDP_CHECK(type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2);
  if (is_for_cuda(x)) return rounded_on_gpu(x, largest, type, orders);
  const float most = largest_number(type);
  const at::Tensor scale = at::div(at::full_like(largest, most), largest.clamp_min(cuda::kLeastMagnitude));
  const at::Tensor values = rounded_after(scale, x, type), inverse = scale.reciprocal();
  return {.values = orders.values ? values : at::Tensor(),
          .transposed = orders.transposed ? values.t().contiguous() : at::Tensor(),
          .inverse_scale = inverse,
          .inverse_scale_of_transposed = inverse};
}

Float8Matrix to_float8_by_rows(const at::Tensor& x, const Float8Orders& orders) {
  at::NoGradGuard no_grad;
  check_roundable(x);
  if (is_for_cuda(x)) return rounded_by_rows_on_gpu(x, orders);
  Float8Matrix result;
  if (orders.values) {
    const at::Tensor scale = scale_of_rows(largest_along(x, 1));
    result.values = rounded_after(scale, x, kForward);
    result.inverse_scale = scale.reciprocal();
  }
  if (orders.transposed) {
    const at::Tensor scale = scale_of_rows(largest_along(x, 0));
    result.transposed = rounded_after(scale, x, kForward).t().contiguous();
    result.inverse_scale_of_transposed = scale.reciprocal().t();
  }
  return result;
}

}  // namespace fsdp::kernels
