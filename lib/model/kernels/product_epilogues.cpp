#include "model/kernels/product_epilogues.h"

#include <ATen/ops/empty.h>

#include "model/kernels/below_autograd.h"
#include "model/kernels/factor_products.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/product_choices.h"
#include "model/kernels/reduce.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {
namespace {

/// Returns the place that a gradient of the parameter will take, in fp32 or `type`.
std::optional<GradientSink::SinkPlace> coming_place(const at::Tensor& parameter, at::ScalarType type) {
  const GradientSink* sink = gradient_sink(parameter);
  if (sink == nullptr) return std::nullopt;
  const auto place = sink->place(at::kFloat);
  return place ? place : sink->place(type);
}

}  // namespace

bool multiply_if_chosen(const cuda::GpuProduct& product, const std::function<void()>& otherwise) {
  ProductChoices* const choices = product_choices(product.c.device());
  return choices != nullptr && cuda::multiply_by_choice(*choices, product, otherwise);
}

at::Tensor product_with(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Addend& addend) {
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  const auto plain = [&] { multiply_on_gpu(c, a, b, /*adds=*/false, bias); };
  const bool fits = addend.x.is_contiguous() && addend.x.scalar_type() == c.scalar_type();
  const at::Tensor x = fits ? strided_view(addend.x, c.sizes(), c.strides()) : at::Tensor();
  const auto by_two = [&] {
    plain();
    // A norm that adds x reads one tensor more than a norm of the sum, and writes one more, as a copy does.
    addend.is_in_another_pass ? c.copy_(x) : c.add_(x);
  };
  addend.is_added = fits && multiply_if_chosen({.c = c, .a = a, .b = b, .bias = bias, .added = x}, by_two);
  if (!addend.is_added) plain();
  return c;
}

std::optional<LayerGradients> gradients_at_once(const at::Tensor& weight, const at::Tensor& bias,
                                                const at::Tensor& x, const at::Tensor& dy, bool only_tries) {
  const ProductChoices* const choices = product_choices(dy.device());
  if (choices == nullptr || SampleSums::current() != nullptr) return std::nullopt;
  if (only_tries && choices->is_settled()) return std::nullopt;
  const auto place = coming_place(weight, x.scalar_type()), place_of_bias = coming_place(bias, at::kFloat);
  const at::Tensor to = place ? place->memory : at::empty(weight.sizes(), x.options());
  const bool in_place = place_of_bias && !place_of_bias->adds && to.scalar_type() == at::kFloat &&
                        reinterpret_cast<uintptr_t>(place_of_bias->memory.data_ptr()) % 16 == 0;
  const at::Tensor sums = in_place ? place_of_bias->memory : at::empty({dy.size(1)}, to.options());
  const at::Tensor a = flipped(x);
  const cuda::GpuProduct product{.c = to,
                                 .a = a,
                                 .b = dy,
                                 .adds = place && place->adds,
                                 .epilogue = cuda::Epilogue::kColumnSums,
                                 .beside = sums,
                                 .only_tries = only_tries};
  const bool is_chosen = multiply_if_chosen(product, [&] {
    multiply_on_gpu(to, a, dy, /*adds=*/false);
    gradient_of_bias(dy, bias.detach());  // without its sink
  });
  if (!is_chosen) return std::nullopt;
  LayerGradients gradients;
  place ? void(take_gradient_place(weight, to.scalar_type())) : void(gradients.weight = to);
  if (const auto taken = take_gradient_place(bias, at::kFloat)) {
    at::Tensor memory = taken->memory;
    if (taken->adds) {
      memory.add_(sums);
    } else if (!in_place) {
      memory.copy_(sums);
    }
  } else {
    gradients.bias = sums.to(bias.scalar_type());
  }
  return gradients;
}

}  // namespace fsdp::kernels
