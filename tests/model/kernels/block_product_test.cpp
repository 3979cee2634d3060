#include "model/kernels/block_product.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "model/kernels/cpu/loops.h"
#include "support/factors.h"

namespace fsdp::kernels {
namespace {

using testing::factor;

void multiply_into(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds) {
  multiply_all_into(std::array{ProductOf{.c = c, .a = a, .adds = adds}}, b);
}

void expect_product(const at::Tensor& a, const at::Tensor& b, bool adds) {
  at::Tensor c = at::randn({a.size(0), b.size(1)});
  at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  if (adds) expected = expected + c.to(at::kDouble);
  multiply_into(c, a, b, adds);
  const double error = (c.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LT(error / expected.abs().max().item<double>(), 3e-6)
      << a.scalar_type() << a.sizes() << a.strides() << b.sizes() << b.strides() << adds;
}

TEST(BlockProduct, IsThatOfDoublePrecisionWhateverIsTransposed) {
  if (!has_small_products(at::kFloat)) GTEST_SKIP() << "no small products on this CPU";
  at::manual_seed(1);
  for (auto [m, k, n] : {std::tuple{1, 1, 1}, {3, 5, 7}, {64, 64, 64}, {70, 33, 130}, {600, 1100, 300}}) {
    for (int way = 0; way < 8; ++way) {
      expect_product(factor(m, k, (way & 1) != 0, at::kFloat), factor(k, n, (way & 2) != 0, at::kFloat),
                     (way & 4) != 0);
    }
  }
}

TEST(BlockProduct, AddsProductsOfBf16InFp32) {
  if (!has_small_products(at::kBFloat16)) GTEST_SKIP() << "no small products in bf16 on this CPU";
  at::manual_seed(2);
  for (auto [m, k, n] : {std::tuple{1, 1, 1}, {3, 5, 7}, {64, 64, 64}, {70, 33, 130}, {600, 1101, 300}}) {
    for (bool adds : {false, true}) {
      expect_product(factor(m, k, true, at::kBFloat16), factor(k, n, false, at::kBFloat16), adds);
      // A gradient of one column, whose rows and columns both are contiguous.
      expect_product(at::randn({k, 1}).to(at::kBFloat16).t(), factor(k, n, false, at::kBFloat16), adds);
      const int64_t even = 2 * k;
      expect_product(factor(m, even, false, at::kBFloat16), factor(even, n, true, at::kBFloat16), adds);
    }
  }
}

/// Expects elements of bf16 near the exact ones, most of them the nearest number.
void expect_rounded(const at::Tensor& c, const at::Tensor& exact) {
  const at::Tensor nearest = exact.to(at::kBFloat16);
  EXPECT_GT((c == nearest).to(at::kDouble).mean().item<double>(), 0.98) << c.sizes();
  EXPECT_TRUE(at::allclose(c.to(at::kDouble), exact, 1.0 / 128, 1e-3)) << c.sizes();
}

TEST(BlockProduct, OfWidenedFactorsIsRoundedOnce) {
  if (!widens_bf16()) GTEST_SKIP() << "bf16 is not widened on this CPU";
  at::manual_seed(5);
  const int before = at::get_num_threads();
  // The last has more depth than a slice and more columns than a thread keeps at once.
  for (auto [m, k, n] : {std::tuple{1, 1, 1}, {3, 5, 7}, {70, 33, 130}, {1100, 1101, 1300}}) {
    for (int way = 0; way < 8; ++way) {
      const at::Tensor a = factor(m, k, (way & 1) != 0, at::kBFloat16),
                       b = factor(k, n, (way & 2) != 0, at::kBFloat16);
      const bool adds = (way & 4) != 0;
      const at::Tensor c = at::randn({m, n}).to(at::kBFloat16);
      at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      if (adds) exact = exact + c.to(at::kDouble);
      for (int threads : {1, 3}) {
        const at::Tensor product = c.clone();
        at::set_num_threads(threads);
        multiply_into(product, a, b, adds);
        at::set_num_threads(before);
        expect_rounded(product, exact);
      }
    }
  }
}

TEST(BlockProduct, IsTheSameForAnyNumberOfThreads) {
  if (!has_small_products(at::kFloat)) GTEST_SKIP() << "no small products on this CPU";
  const int before = at::get_num_threads();
  const at::Tensor a = at::randn({700, 90}), b = at::randn({90, 200});
  at::Tensor one = at::empty({700, 200}), three = at::empty({700, 200});
  at::set_num_threads(1);
  multiply_into(one, a, b, false);
  at::set_num_threads(3);
  multiply_into(three, a, b, false);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one, three));
}

// Sums by sample depend on it (sample_sums.h).
TEST(BlockProduct, OfARowIsTheSameWhateverRowsAreBesideIt) {
  if (!has_small_products(at::kFloat)) GTEST_SKIP() << "no small products on this CPU";
  at::manual_seed(4);
  for (int64_t n : {1, 7, 16, 23, 130}) {
    const at::Tensor a = at::randn({29, 70}), b = at::randn({70, n});
    at::Tensor all = at::empty({29, n});
    multiply_into(all, a, b, false);
    for (int64_t rows : {1, 2, 5, 6, 13}) {
      at::Tensor last = at::empty({rows, n});
      multiply_into(last, a.narrow(0, 29 - rows, rows), b, false);
      EXPECT_TRUE(at::equal(last, all.narrow(0, 29 - rows, rows)))
          << rows << " of 29 rows, " << n << " columns";
    }
  }
}

TEST(BlockProduct, OfSeveralLeftFactorsIsEachOnesOwn) {
  if (!has_small_products(at::kFloat)) GTEST_SKIP() << "no small products on this CPU";
  const int before = at::get_num_threads();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (!has_small_products(type)) continue;
    at::manual_seed(3);
    // More rows than a block, more columns than stay packed, more depth than a slice.
    const at::Tensor b = factor(1030, 2100, false, type);
    std::vector<ProductOf> products;
    std::vector<at::Tensor> alone;
    for (int64_t rows : {1, 700, 37}) {
      products.push_back(
          {.c = at::randn({rows, b.size(1)}), .a = factor(rows, 1030, true, type), .adds = rows == 37});
      alone.push_back(products.back().c.clone());
      multiply_into(alone.back(), products.back().a, b, products.back().adds);
      expect_product(products.back().a, b, products.back().adds);
    }
    for (int threads : {1, 3}) {
      const at::Tensor last = products[2].c.clone();
      at::set_num_threads(threads);
      multiply_all_into(products, b);
      at::set_num_threads(before);
      for (size_t i = 0; i < products.size(); ++i)
        EXPECT_TRUE(at::equal(products[i].c, alone[i])) << type << i;
      products[2].c.copy_(last);
    }
  }
}

TEST(BlockProduct, OfNothingIsZero) {
  if (!has_small_products(at::kFloat)) GTEST_SKIP() << "no small products on this CPU";
  at::Tensor c = at::ones({2, 3});
  multiply_into(c, at::empty({2, 0}), at::empty({0, 3}), true);
  EXPECT_TRUE(at::equal(c, at::ones({2, 3})));
  multiply_into(c, at::empty({2, 0}), at::empty({0, 3}), false);
  EXPECT_TRUE(at::equal(c, at::zeros({2, 3})));
}

TEST(Packing, WidensBf16) {
  const cpu::Packing* widening = cpu::widening();
  if (widening == nullptr) GTEST_SKIP() << "no fast products on this CPU";
  for (auto [rows, width] : {std::pair{1, 1}, {16, 16}, {32, 16}, {35, 50}, {70, 33}}) {
    const at::Tensor from = at::randn({rows, width + 3}).to(at::kBFloat16).narrow(1, 0, width);
    const cpu::StridedRows strided{
        .data = from.data_ptr(), .stride = width + 3, .rows = rows, .width = width};
    const at::Tensor straight = at::full({rows + 2, width}, 7.0), columns = at::full({width, rows}, 7.0),
                     transposed = at::full({width, rows + 2}, 7.0);
    widening->rows(strided, rows + 2, straight.data_ptr());
    EXPECT_TRUE(at::equal(straight, at::cat({from.to(at::kFloat), at::zeros({2, width})})))
        << rows << "x" << width;
    widening->columns(strided, columns.data_ptr());
    EXPECT_TRUE(at::equal(columns, from.t().to(at::kFloat))) << rows << "x" << width;
    widening->transposed(strided, rows + 2, transposed.data_ptr());
    EXPECT_TRUE(at::equal(transposed, at::cat({from.t().to(at::kFloat), at::zeros({width, 2})}, 1)))
        << rows << "x" << width;
  }
}

TEST(Packing, TransposesAndPads) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const cpu::Packing* packing =
        cpu::packing(type == at::kFloat ? cpu::Element::kFloat : cpu::Element::kBFloat16);
    if (packing == nullptr) GTEST_SKIP() << "no fast products on this CPU";
    for (auto [rows, width] : {std::pair{1, 1}, {16, 16}, {32, 16}, {35, 50}, {70, 33}}) {
      const int64_t padded = (rows + 1) / 2 * 2;
      const at::Tensor from = at::randn({rows, width}).to(type);
      at::Tensor to = at::full({width, padded}, 7, type);
      packing->transposed({.data = from.data_ptr(), .stride = width, .rows = rows, .width = width}, padded,
                          to.data_ptr());
      EXPECT_TRUE(at::equal(to.narrow(1, 0, rows), from.t())) << rows << "x" << width << type;
      EXPECT_TRUE(at::equal(to.narrow(1, rows, padded - rows), at::zeros({width, padded - rows}, type)));
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels
