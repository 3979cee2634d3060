#include "model/kernels/factor_products.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <array>
#include <string_view>
#include <utility>

#include "base/util/matrix_units.h"
#include "model/kernels/cuda/products.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/meta.h"
#include "model/kernels/product_choices.h"
#include "model/kernels/tile_product.h"

namespace fsdp::kernels {
namespace {

// This runs before the first product of the process.
[[maybe_unused]] const bool checked_tiles = util::keep_onednn_from_broken_tiles();

/// Number of rows below which packing a weight does not pay.
constexpr int64_t kLeastRows = 64;
bool has_few_rows(const at::Tensor& a) { return a.size(0) < kLeastRows; }

bool is_cpu_float(const at::Tensor& x) { return is_for_cpu(x) && x.scalar_type() == at::kFloat; }

/// Whether products of x consist of small ones, unless they go to tiles. With instructions of bf16, oneDNN's
/// whole products are as fast.
bool goes_to_blocks(const at::Tensor& x) {
  return is_cpu_float(x) || (is_for_cpu(x) && x.scalar_type() == at::kBFloat16 && widens_bf16());
}

bool goes_to_tiles(const at::Tensor& x, Matmul matmul) {
  return matmul == Matmul::kAmx && SampleSums::current() == nullptr && x.numel() > 0 &&
         can_multiply_by_tiles(x);
}

bool is_packed_for_tiles(const at::Tensor& a, Matmul matmul) {
  return goes_to_tiles(a, matmul) && !has_few_rows(a);
}

/// Returns a b^T + bias.
at::Tensor onednn_product(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  if (a.is_meta()) {
    note_product(a.size(0), b.size(0), a.size(1));
    if (!a.is_contiguous()) a.contiguous();  // a transposed factor is copied; oneDNN reads b in place
    return at::empty({a.size(0), b.size(0)}, a.options());
  }
  using Operator =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                 c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto linear_pointwise =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Operator>();
  return linear_pointwise.call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

void multiply_here(const ProductOf& product, const at::Tensor& b, Matmul matmul) {
  multiply_here(std::span(&product, 1), b, matmul);
}

/// Returns a b + bias, rounded once, by blocks, in which no row depends on the number of rows or threads.
at::Tensor product_by_rows(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias) {
  const std::array<int64_t, 2> shape{a.size(0), b.size(1)};
  const auto options = a.options().dtype(at::kFloat);
  const at::Tensor sum = bias ? bias->to(at::kFloat).expand(shape).contiguous() : at::empty(shape, options);
  // In bf16 the blocks process the depth in pairs.
  const bool pads = a.scalar_type() == at::kBFloat16 && !widens_bf16() && a.size(1) % 2 != 0;
  const ProductOf product{.c = sum, .a = pads ? at::constant_pad_nd(a, {0, 1}) : a, .adds = bias.has_value()};
  multiply_all_into(std::span(&product, 1), pads ? at::constant_pad_nd(b, {0, 0, 0, 1}) : b);
  return sum.to(a.scalar_type());
}

}  // namespace

void multiply_on_gpu(at::Tensor c, const at::Tensor& a, const at::Tensor& b, bool adds,
                     const at::Tensor& bias) {
  const bool widens = c.scalar_type() != a.scalar_type();
  const auto by_libtorch = [&] {
    if (adds) {
      widens ? at::addmm_out(c, c, a, b, c.scalar_type()) : at::addmm_out(c, c, a, b);
    } else if (bias.defined()) {
      at::addmm_out(c, bias, a, b);
    } else {
      widens ? at::mm_out(c, a, b, c.scalar_type()) : at::mm_out(c, a, b);
    }
  };
  ProductChoices* const choices = product_choices(c.device());
  const cuda::GpuProduct product{.c = c, .a = a, .b = b, .adds = adds, .bias = bias};
  if (choices == nullptr || !cuda::multiply_by_choice(*choices, product, by_libtorch)) by_libtorch();
}

bool computes_here(const at::Tensor& x, Matmul matmul) {
  if (x.numel() == 0) return false;
  if (is_for_cuda(x)) return can_fuse(x);
  if (matmul == Matmul::kMkl) return false;
  // In bf16 with neither tiles nor widened factors, only the gradient of the weight is computed here.
  return is_cpu_float(x) || goes_to_tiles(x, matmul) ||
         (is_for_cpu(x) && x.scalar_type() == at::kBFloat16 && has_small_products(at::kBFloat16));
}

bool multiplies_here(const at::Tensor& x, Matmul matmul) {
  return goes_to_tiles(x, matmul) || (is_for_cpu(x) && has_small_products(x.scalar_type()));
}

void multiply_here(std::span<const ProductOf> products, const at::Tensor& b, Matmul matmul) {
  if (!goes_to_tiles(b, matmul)) return multiply_all_into(products, b);
  TileProducts by_tiles{.terms = {{.lefts = {}, .rights = {b}}}};
  for (const ProductOf& product : products) {
    by_tiles.terms[0].lefts.push_back(product.a);
    by_tiles.results.push_back({.c = product.c, .adds = product.adds});
  }
  multiply_by_tiles(by_tiles);
}

at::Tensor product_of(const at::Tensor& a, const at::Tensor& b, Matmul matmul,
                      const std::optional<at::Tensor>& bias) {
  if (SampleSums::current() != nullptr) return product_by_rows(a, b, bias);
  if (product_choices(a.device()) != nullptr) {
    const at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
    multiply_on_gpu(c, a, b, /*adds=*/false, bias.value_or(at::Tensor()));
    return c;
  }
  const bool by_blocks = goes_to_blocks(a);
  if (!is_packed_for_tiles(a, matmul) && !(by_blocks && !has_few_rows(a) && multiplies_here(a, matmul))) {
    if (is_cpu_float(a)) return onednn_product(a, b.t(), bias);
    return bias ? at::addmm(*bias, a, b) : at::mm(a, b);
  }
  const bool begins_with_bias = bias && by_blocks;
  at::Tensor product = begins_with_bias ? bias->expand({a.size(0), b.size(1)}).contiguous()
                                        : at::empty({a.size(0), b.size(1)}, a.options());
  if (bias && !by_blocks) {
    multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = product, .bias = bias->contiguous()}}});
  } else {
    multiply_here({.c = product, .a = a, .adds = begins_with_bias}, b, matmul);
  }
  return product;
}

std::vector<at::Tensor> products_of(const at::Tensor& a, const std::vector<at::Tensor>& bs, Matmul matmul) {
  return sums_of_products({{a, bs}}, matmul);
}

std::vector<at::Tensor> sums_of_products(const std::vector<Summands>& summands, Matmul matmul) {
  const auto& [a, bs] = summands.front();
  std::vector<at::Tensor> sums;
  if (!is_packed_for_tiles(a, matmul)) {
    for (const at::Tensor& b : bs) sums.push_back(product_of(a, b, matmul));
    for (size_t i = 1; i < summands.size(); ++i) {
      for (size_t sum = 0; sum < sums.size(); ++sum) {
        if (summands[i].bs[sum].defined()) {
          add_product_of(sums[sum], summands[i].a, summands[i].bs[sum], matmul);
        }
      }
    }
    return sums;
  }
  TileProducts products;
  for (const auto& [left, rights] : summands) products.terms.push_back({{left}, rights});
  for (const at::Tensor& b : bs) {
    sums.push_back(at::empty({a.size(0), b.size(1)}, a.options()));
    products.results.push_back({.c = sums.back()});
  }
  multiply_by_tiles(products);
  return sums;
}

void add_product_of(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul) {
  if (SampleSums::current() != nullptr) {
    sum.add_(product_by_rows(a, b, std::nullopt));
  } else if (sum.is_cuda()) {
    multiply_on_gpu(sum, a, b, /*adds=*/true);
  } else if (!goes_to_blocks(a) && !is_packed_for_tiles(a, matmul)) {
    sum.addmm_(a, b);
  } else if (has_few_rows(a)) {
    sum.add_(product_of(a, b, matmul));
  } else {
    multiply_here({.c = sum, .a = a, .adds = true}, b, matmul);
  }
}

bool multiplies_in_place(const at::Tensor& a, Matmul matmul) {
  return is_for_cuda(a) || is_packed_for_tiles(a, matmul);
}

void multiply_in_place(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds, Matmul matmul) {
  if (!is_for_cuda(a)) {
    multiply_here({.c = c, .a = a, .adds = adds}, b, matmul);
  } else if (a.is_meta() && c.scalar_type() != a.scalar_type()) {
    note_product(a.size(0), b.size(1), a.size(1));
  } else {
    multiply_on_gpu(c, a, b, adds);
  }
}

at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                           Matmul matmul) {
  if (const SampleSums* sums = SampleSums::current()) {
    const int64_t rows = sums->rows_of_sample(b.size(0));
    return gradient_along_tree(weight, sums->samples(), [&](int64_t sample, const at::Tensor& to) {
      const ProductOf product{.c = to, .a = a.narrow(1, sample * rows, rows), .adds = false};
      multiply_all_into(std::span(&product, 1), b.narrow(0, sample * rows, rows));
    });
  }
  const bool on_cuda = is_for_cuda(a);
  std::optional<GradientSink::SinkPlace> place;
  if (on_cuda || multiplies_here(a, matmul)) place = take_gradient_place(weight, at::kFloat);
  if (on_cuda && !place) place = take_gradient_place(weight, a.scalar_type());
  if (!place) return product_of(a, b, matmul);
  multiply_in_place(place->memory, a, b, place->adds, matmul);
  return {};
}

at::Tensor GradientsWith::add(const at::Tensor& weight, const at::Tensor& a) {
  if (!waits_) return weight_gradient(weight, a, b_, matmul_);
  const auto place = take_gradient_place(weight, at::kFloat);
  if (!place) return product_of(a, b_, matmul_);
  // If a weight occurs twice, the second gradient is added to the first.
  for (const ProductOf& other : products_) {
    if (other.c.data_ptr() == place->memory.data_ptr()) finish();
  }
  products_.push_back({.c = place->memory, .a = a, .adds = place->adds});
  return {};
}

void GradientsWith::finish() { multiply_here(std::exchange(products_, {}), b_, matmul_); }

}  // namespace fsdp::kernels
