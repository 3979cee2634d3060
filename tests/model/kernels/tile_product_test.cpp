#include "model/kernels/tile_product.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "base/util/matrix_units.h"
#include "model/kernels/matmul.h"
#include "support/factors.h"

namespace fsdp::kernels {
namespace {

using testing::factor;

double tile_error_of(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

at::Tensor exact(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}

class TileProduct : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!util::has_matrix_unit()) GTEST_SKIP() << "no matrix unit";
    at::manual_seed(1);
  }
  void TearDown() override { set_float32_parts(3); }

  static void expect_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type, bool adds) {
    at::Tensor c = at::randn({a.size(0), b.size(1)}).to(type);
    at::Tensor expected = exact(a, b);
    if (adds) expected = expected + c.to(at::kDouble);
    multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = c, .adds = adds}}});
    EXPECT_LT(tile_error_of(c, expected), type == at::kFloat ? (a.size(1) > 2000 ? 2e-6 : 1e-6) : 4e-3)
        << a.scalar_type() << a.sizes() << a.strides() << b.sizes() << b.strides() << adds << type;
  }
};

// Sizes just below and above those of a tile, of a packed group, and of a slice of the depth.
TEST_F(TileProduct, IsThatOfDoublePrecisionWhateverIsTransposed) {
  for (auto [m, k, n] : {std::tuple{1, 1, 1},
                         {3, 5, 7},
                         {16, 32, 16},
                         {33, 64, 17},
                         {70, 33, 130},
                         {300, 1100, 1300},
                         {80, 4200, 100},
                         {2100, 40, 50}}) {
    for (int way = 0; way < 8; ++way) {
      for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor a = factor(m, k, (way & 1) != 0, type), b = factor(k, n, (way & 2) != 0, type);
        expect_product(a, b, at::kFloat, (way & 4) != 0);
        if (type == at::kBFloat16) expect_product(a, b, type, (way & 4) != 0);
      }
    }
  }
}

TEST_F(TileProduct, OfFp32HasTheErrorOfSumsInFp32) {
  for (int64_t k : {64, 512, 2048}) {
    const at::Tensor a = at::randn({256, k}), b = at::randn({k, 256}), expected = exact(a, b);
    at::Tensor c = at::empty({256, 256});
    multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = c}}});
    const auto mean_error = [&](const at::Tensor& found) {
      return (found.to(at::kDouble) - expected).square().mean().sqrt().item<double>();
    };
    EXPECT_LT(mean_error(c), 1.2 * mean_error(product(a, b.t(), Matmul::kMkl))) << k;
  }
}

TEST_F(TileProduct, OfTwoNumbersIsRightToTwoUnitsInTheLastPlace) {
  // Numbers that need all 24 bits, from very large to very small.
  const at::Tensor scale = at::exp2(at::arange(-100, 100, 2, at::kFloat)).unsqueeze(1);
  const at::Tensor a = scale * (1 + at::rand({100, 1})), b = 1 + at::rand({1, 64});
  at::Tensor c = at::empty({100, 64});
  multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = c}}});
  const at::Tensor expected = exact(a, b);
  EXPECT_LT(((c.to(at::kDouble) - expected) / expected).abs().max().item<double>(), 2.4e-7);
}

TEST_F(TileProduct, OfTheLargestNumbersIsFinite) {
  const float most = std::numeric_limits<float>::max();
  at::Tensor c = at::empty({64, 64});
  multiply_by_tiles(
      {.terms = {{{at::full({64, 1}, most)}, {at::full({1, 64}, 0.5F)}}}, .results = {{.c = c}}});
  EXPECT_TRUE(c.eq(most / 2).all().item<bool>());
}

TEST_F(TileProduct, OfSomethingThatIsNotFiniteIsNotFinite) {
  for (float value : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    at::Tensor a = at::randn({64, 40}), c = at::empty({64, 64});
    a[5][7] = value;
    multiply_by_tiles({.terms = {{{a}, {at::randn({40, 64})}}}, .results = {{.c = c}}});
    EXPECT_FALSE(at::isfinite(c[5]).any().item<bool>());
    EXPECT_TRUE(at::isfinite(c.narrow(0, 6, 58)).all().item<bool>());
  }
}

TEST_F(TileProduct, OfTwoPartsHasSixteenBits) {
  const at::Tensor a = at::randn({200, 300}), b = at::randn({300, 100}), expected = exact(a, b);
  at::Tensor c = at::empty({200, 100});
  set_float32_parts(2);
  multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = c}}});
  EXPECT_LT(tile_error_of(c, expected), 2e-5);
  EXPECT_GT(tile_error_of(c, expected), 1e-6);
}

TEST_F(TileProduct, OfSeveralFactorsIsEachOnesOwnForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (at::ScalarType result : {at::kFloat, type}) {
      TileProducts products{.terms = {{}}};
      for (int64_t rows : {1, 700, 37})
        products.terms[0].lefts.push_back(factor(rows, 1030, rows == 700, type));
      for (int64_t columns : {900, 17, 300})
        products.terms[0].rights.push_back(factor(1030, columns, columns == 17, type));
      std::vector<at::Tensor> alone;
      for (const at::Tensor& a : products.terms[0].lefts) {
        for (const at::Tensor& b : products.terms[0].rights) {
          products.results.push_back(
              {.c = at::randn({a.size(0), b.size(1)}).to(result), .adds = b.size(1) == 17});
          if (result == at::kBFloat16) products.results.back().bias = at::randn({b.size(1)}).to(type);
          TileProducts one{.terms = {{{a}, {b}}}, .results = {products.results.back()}};
          one.results[0].c = one.results[0].c.clone();
          multiply_by_tiles(one);
          alone.push_back(one.results[0].c);
        }
      }
      for (int threads : {1, 3}) {
        TileProducts copies = products;
        for (auto& copy : copies.results) copy.c = copy.c.clone();
        at::set_num_threads(threads);
        multiply_by_tiles(copies);
        at::set_num_threads(before);
        for (size_t i = 0; i < alone.size(); ++i) {
          EXPECT_TRUE(at::equal(copies.results[i].c, alone[i])) << type << result << i << " " << threads;
        }
      }
    }
  }
}

// Terms of one slice of the depth, of several, and of less than a tile; rows that are read in place, and
// others.
TEST_F(TileProduct, OfSeveralTermsIsTheirSumWithoutThoseThatLackAFactor) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (at::ScalarType result : {at::kFloat, type}) {
      for (bool adds : {false, true}) {
        TileProducts products;
        std::vector<at::Tensor> expected;
        for (int64_t columns : {96, 130}) {
          const at::Tensor c = at::randn({70, columns}).to(result);
          products.results.push_back({.c = c, .adds = adds});
          expected.push_back(adds ? c.to(at::kDouble) : at::zeros({70, columns}, at::kDouble));
        }
        for (int64_t depth : {64, 16, 5000, 0, 96}) {
          TileProducts::Term term{{factor(70, depth, depth == 96, type)}, {}};
          for (size_t i = 0; i < expected.size(); ++i) {
            const int64_t columns = products.results[i].c.size(1);
            const bool lacks = (depth == 16 && i == 1) || (depth == 5000 && i == 0);
            term.rights.push_back(lacks ? at::Tensor() : factor(depth, columns, i == 0, type));
            if (!lacks) expected[i] = expected[i] + exact(term.lefts[0], term.rights[i]);
          }
          products.terms.push_back(term);
        }
        multiply_by_tiles(products);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_LT(tile_error_of(products.results[i].c, expected[i]), result == at::kFloat ? 2e-6 : 4e-3)
              << type << result << adds << i;
        }
      }
    }
  }
}

// Blocks begin at whole tiles for every width in bytes.
TEST_F(TileProduct, AddsAsOneThreadDoesWhereverOthersBegin) {
  const int before = at::get_num_threads();
  for (int64_t k : {470, 330, 1376}) {
    const at::Tensor a = at::randn({272, k}), b = at::randn({k, 546}), c = at::randn({272, 546});
    at::Tensor one = c.clone(), three = c.clone();
    at::set_num_threads(1);
    multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = one, .adds = true}}});
    at::set_num_threads(3);
    multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = three, .adds = true}}});
    at::set_num_threads(before);
    EXPECT_TRUE(at::equal(one, three)) << k;
  }
}

TEST_F(TileProduct, OfNothingIsZeroOrTheBias) {
  at::Tensor c = at::ones({2, 3});
  const at::Tensor a = at::empty({2, 0}), b = at::empty({0, 3});
  multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = c, .adds = true}}});
  EXPECT_TRUE(at::equal(c, at::ones({2, 3})));
  multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = c}}});
  EXPECT_TRUE(at::equal(c, at::zeros({2, 3})));
  multiply_by_tiles({});
}

/// The same numbers, right before inaccessible memory.
class Guarded {
 public:
  explicit Guarded(const at::Tensor& x) {
    const size_t bytes = x.nbytes(), room = (bytes + kPage - 1) / kPage * kPage;
    size_ = room + kPage;
    memory_ = static_cast<char*>(
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::mprotect(memory_ + room, kPage, PROT_NONE), 0);
    tensor = at::from_blob(memory_ + room - bytes, x.sizes(), x.options());
    tensor.copy_(x);
  }
  ~Guarded() { ::munmap(memory_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  at::Tensor tensor;

 private:
  static constexpr size_t kPage = 4096;
  char* memory_;
  size_t size_;
};

TEST_F(TileProduct, TouchesNothingBeyondItsFactorsAndResults) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (auto [m, k, n] : {std::tuple{1, 1, 1}, {33, 70, 17}, {15, 31, 47}, {48, 64, 32}}) {
      for (int way = 0; way < 4; ++way) {
        const Guarded a((way & 1) != 0 ? at::randn({k, m}).to(type) : at::randn({m, k}).to(type));
        const Guarded b((way & 2) != 0 ? at::randn({n, k}).to(type) : at::randn({k, n}).to(type));
        const at::Tensor left = (way & 1) != 0 ? a.tensor.t() : a.tensor;
        const at::Tensor right = (way & 2) != 0 ? b.tensor.t() : b.tensor;
        for (at::ScalarType result : {at::kFloat, type}) {
          const Guarded c(at::zeros({m, n}).to(result));
          multiply_by_tiles({.terms = {{{left}, {right}}}, .results = {{.c = c.tensor, .adds = true}}});
          EXPECT_LT(tile_error_of(c.tensor, exact(left, right)), result == at::kFloat ? 2e-6 : 4e-3)
              << m << way;
        }
      }
    }
  }
}

// The operating system must save the tile registers of each thread at a context switch.
TEST_F(TileProduct, IsTheSameWhenMoreThreadsThanCoresMultiply) {
  const at::Tensor a = at::randn({300, 500}), b = at::randn({500, 400});
  const auto multiply = [&] {
    at::Tensor c = at::empty({300, 400});
    multiply_by_tiles({.terms = {{{a}, {b}}}, .results = {{.c = c}}});
    return c;
  };
  const at::Tensor expected = multiply();
  std::vector<int> wrong(8);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) count += at::equal(multiply(), expected) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(8));
}

}  // namespace
}  // namespace fsdp::kernels
