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
#include "model/kernels/gradient_sink.h"
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

Float8Matrix rounded_on_gpu(const at::Tensor& x, const at::Tensor& largest, at::ScalarType type,
                            const Float8Orders& orders) {
  const c10::DeviceGuard guard(x.device());
  const int64_t rows = x.size(0), width = x.size(1);
  Float8Matrix result{.values = {}, .transposed = {}, .inverse_scale = at::empty({}, largest.options())};
  if (orders.values) result.values = at::empty({rows, width}, x.options().dtype(type));
  if (orders.transposed) result.transposed = at::empty({width, rows}, x.options().dtype(type));
  if (x.is_meta()) return result;
  cuda::round_to_float8({.x = x.const_data_ptr(),
                         .largest = largest.const_data_ptr<float>(),
                         .values = orders.values ? result.values.data_ptr() : nullptr,
                         .transposed = orders.transposed ? result.transposed.data_ptr() : nullptr,
                         .inverse_scale = result.inverse_scale.data_ptr<float>(),
                         .rows = rows,
                         .width = width,
                         .is_e5m2 = type == at::kFloat8_e5m2});
  return result;
}

/// A factor of a product, with the summed index last.
struct Factor {
  const at::Tensor& values;
  const at::Tensor& inverse_scale;
};

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
      return at::_scaled_mm(a.values, b.values.t(), a.inverse_scale, b.inverse_scale, added, std::nullopt,
                            type, fast);
    }
    at::Tensor sums = multiplied(a.values.to(at::kFloat), b.values.to(at::kFloat));
    sums.mul_(a.inverse_scale.mul(b.inverse_scale));
    if (bias) sums.add_(*bias);
    return sums.to(type);
  }

  void note() const {
    note_product(a.values.size(0), b.values.size(0), b.values.size(1), ProductKind::kFloat8);
  }

  void put(const GradientSink::SinkPlace& place) const {
    if (!place.adds && place.memory.is_meta() && is_for_cuda(place.memory)) {
      note();
    } else if (!place.adds && place.memory.is_cuda() && is_aligned(place.memory)) {
      at::Tensor to = place.memory;
      at::_scaled_mm_out(to, a.values, b.values.t(), a.inverse_scale, b.inverse_scale, std::nullopt,
                         std::nullopt, to.scalar_type(), fast);
    } else if (const at::Tensor part = of_type(place.memory.scalar_type()); place.adds) {
      place.memory.add_(part);
    } else {
      place.memory.copy_(part);
    }
  }

 private:
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

/// Computes y_i = x W_i^T or, if `transposed`, x W_i + b. x: [N, in]
class Float8Products final : public torch::autograd::Function<Float8Products> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& given, at::TensorList,
                               const std::optional<at::Tensor>& bias, const Parameters& parameters,
                               bool transposed, int64_t matmul_number, bool keeps_rounded) {
    const BelowAutograd below;
    const at::Tensor x = given.contiguous();
    const auto matmul = static_cast<Matmul>(matmul_number);
    const at::Tensor largest = largest_magnitude(x);
    // Backward needs x in the other order: its numbers in 8 bits take half of the memory of x. The weight is
    // gathered for backward.
    const bool is_needed = any_is_trained(parameters.tensors);
    const bool is_kept = is_needed && keeps_rounded && !is_recomputed(given);
    const Float8Matrix x8 = to_float8(x, largest, kForward, {.values = true, .transposed = is_kept});
    variable_list saved{is_needed && !is_kept ? x : at::Tensor(), largest, bias.value_or(at::Tensor()),
                        x8.transposed, is_kept ? x8.inverse_scale : at::Tensor()};
    variable_list products;
    for (const at::Tensor& weight : parameters.tensors) {
      const at::Tensor largest_of_weight = largest_magnitude(weight);
      const Float8Matrix w8 =
          to_float8(weight, largest_of_weight, kForward, {.values = !transposed, .transposed = transposed});
      const Product product{.a = {x8.values, x8.inverse_scale},
                            .b = {transposed ? w8.transposed : w8.values, w8.inverse_scale},
                            .matmul = matmul,
                            .fast = true};
      products.push_back(product.of_type(x.scalar_type(), bias));
      saved.insert(saved.end(), {weight, largest_of_weight});
    }
    save_operands(*context, std::move(saved), {{0, given}});
    context->saved_data["transposed"] = transposed;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["matmul"] = matmul_number;
    return products;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const at::Tensor &largest = saved[1], &bias = saved[2];
    Float8Matrix x8{.values = {}, .transposed = saved[3], .inverse_scale = saved[4]};
    const bool transposed = context->saved_data["transposed"].toBool();
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const size_t weights = gradients.size();
    // Gradients of x, the weights, the bias; none of the last four arguments.
    variable_list results(weights + 6);
    for (size_t i = 0; i < weights; ++i) {
      const at::Tensor &weight = saved[5 + 2 * i], &largest_of_weight = saved[6 + 2 * i];
      const at::Tensor dy = gradients[i].contiguous();
      const bool of_x = context->needs_input_grad(0), of_weight = is_wanted(*context, 1 + i, weight);
      const Float8Matrix dy8 =
          to_float8(dy, largest_magnitude(dy), kBackward, {.values = of_x, .transposed = of_weight});
      if (of_x) {
        const Float8Matrix w8 =
            to_float8(weight, largest_of_weight, kForward, {.values = transposed, .transposed = !transposed});
        const Product product{.a = {dy8.values, dy8.inverse_scale},
                              .b = {transposed ? w8.values : w8.transposed, w8.inverse_scale},
                              .matmul = matmul};
        const at::Tensor dx = product.of_type(at::kBFloat16);
        results[0] = results[0].defined() ? results[0].add_(dx) : dx;
      }
      if (of_weight) {
        if (!x8.transposed.defined()) {
          x8 = to_float8(saved[0].contiguous(), largest, kForward, {.values = false, .transposed = true});
        }
        const Factor by_x{x8.transposed, x8.inverse_scale}, by_dy{dy8.transposed, dy8.inverse_scale};
        const Product product{
            .a = transposed ? by_x : by_dy, .b = transposed ? by_dy : by_x, .matmul = matmul};
        results[1 + i] = deliver(*context, 1 + i, weight, float8_weight_gradient(weight, product));
      }
      if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1 + weights)) {
        results[1 + weights] = gradient_of_bias(dy, bias);
      }
    }
    return results;
  }
};

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
                                       Matmul matmul, KeptInput kept) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const std::vector<at::Tensor> seen = seen_parameters(weights, rows);
  auto results =
      Float8Products::apply(rows, at::TensorList(seen), std::optional<at::Tensor>(), Parameters{weights},
                            false, static_cast<int64_t>(matmul), kept == KeptInput::kRounded);
  std::vector<int64_t> shape = x.sizes().vec();
  for (at::Tensor& result : results) {
    shape.back() = result.size(1);
    result = result.view(shape);
  }
  return results;
}

at::Tensor float8_transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, Matmul matmul, KeptInput kept) {
  const at::Tensor seen = seen_parameter(weight, x);
  return Float8Products::apply(x, at::TensorList(seen), bias, Parameters{{weight}}, true,
                               static_cast<int64_t>(matmul), kept == KeptInput::kRounded)[0];
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
  FSDP_CHECK(x.dim() == 2 && x.is_contiguous() && x.scalar_type() == at::kBFloat16, x.sizes());
  FSDP_CHECK(type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2);
  if (is_for_cuda(x)) return rounded_on_gpu(x, largest, type, orders);
  const float most = largest_number(type);
  const at::Tensor scale = at::div(at::full_like(largest, most), largest.clamp_min(cuda::kLeastMagnitude));
  const at::Tensor values = x.to(at::kFloat).mul_(scale).clamp_(-most, most).to(type);
  return {.values = orders.values ? values : at::Tensor(),
          .transposed = orders.transposed ? values.t().contiguous() : at::Tensor(),
          .inverse_scale = scale.reciprocal()};
}

}  // namespace fsdp::kernels
