// The rounding to 8 bits for GPUs, emulated, against that of the CPU.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/kernels/cuda/float8.cuh"
#include "model/kernels/float8.h"
#include "support/emulated_kernels.h"

namespace fsdp::kernels::cuda {
namespace {

class CudaFloat8 : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static Buffer bytes(at::IntArrayRef shape) { return Buffer(at::zeros(shape, at::kChar)); }

  /// Rounds x [rows, width], `shift` elements behind an aligned address, and compares.
  static void expect_as_on_cpu(const at::Tensor& x, const Float8Orders& orders, int64_t shift) {
    const int64_t rows = x.size(0), width = x.size(1);
    const Buffer from(x, shift), largest(largest_magnitude(x).view({1}));
    Buffer values = bytes({rows, width}), transposed = bytes({width, rows}), inverse({1}, at::kFloat);
    run_under_all_schedules({&values, &transposed, &inverse}, [&](const EmulatedLaunch& launch) {
      round_to_float8(launch, {.x = from.data(),
                               .largest = largest.data<float>(),
                               .values = orders.values ? values.data() : nullptr,
                               .transposed = orders.transposed ? transposed.data() : nullptr,
                               .inverse_scale = inverse.data<float>(),
                               .rows = rows,
                               .width = width,
                               .is_e5m2 = GetParam() == at::kFloat8_e5m2});
    });
    const Float8Matrix expected = to_float8(x, largest_magnitude(x), GetParam(), orders);
    EXPECT_TRUE(have_equal_bits(inverse.values(), expected.inverse_scale.view({1})));
    auto expect_equal = [](const at::Tensor& found, const at::Tensor& wanted) {
      EXPECT_TRUE(at::equal(found, wanted.defined() ? wanted.view(at::kChar) : at::zeros_like(found)));
    };
    expect_equal(values.values(), expected.values);
    expect_equal(transposed.values(), expected.transposed);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaFloat8, ::testing::Values(at::kFloat8_e4m3fn, at::kFloat8_e5m2),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(CudaFloat8, RoundsAsTheCpuDoesInEitherOrder) {
  at::manual_seed(1);
  for (auto [rows, width] :
       {std::pair<int64_t, int64_t>{16, 16}, {64, 64}, {80, 144}, {16, 208}, {192, 48}}) {
    for (bool values : {true, false}) {
      for (bool transposed : {true, false}) {
        const at::Tensor x = (at::randn({rows, width}) * 1e-3).to(at::kBFloat16);
        expect_as_on_cpu(x, {.values = values, .transposed = transposed}, 0);
      }
    }
  }
}

TEST_P(CudaFloat8, ReadsWeightsThatLieAnywhere) {
  expect_as_on_cpu(at::randn({80, 144}).to(at::kBFloat16), {.values = true, .transposed = true}, 3);
}

TEST_P(CudaFloat8, RoundsEveryMagnitudeAsTheCpuDoes) {
  // All positive numbers of bf16 up to 1, among them those that become subnormal, ties and zeros.
  const at::Tensor bits = at::arange(16256, at::kLong).to(at::kShort);
  expect_as_on_cpu(bits.view(at::kBFloat16).view({16, 1016}).narrow(1, 0, 1008).contiguous(), {}, 0);
  expect_as_on_cpu(bits.view(at::kBFloat16).flip(0).narrow(0, 0, 64 * 64).view({64, 64}).neg(), {}, 0);
}

void expect_by_rows_as_on_cpu(const at::Tensor& x, const Float8Orders& orders, int64_t shift) {
  const int64_t rows = x.size(0), width = x.size(1);
  const at::Tensor magnitudes = x.to(at::kFloat).abs();
  const Buffer from(x, shift), of_rows(magnitudes.amax({1})), of_columns(magnitudes.amax({0}));
  Buffer values(at::zeros({rows, width}, at::kChar)), transposed(at::zeros({width, rows}, at::kChar)),
      inverse({rows}, at::kFloat), inverse_of_columns({width}, at::kFloat);
  run_under_all_schedules({&values, &transposed, &inverse, &inverse_of_columns},
                          [&](const EmulatedLaunch& launch) {
                            Float8Rounding rounding{.x = from.data(), .rows = rows, .width = width};
                            rounding.by_rows = true;
                            if (orders.values) {
                              rounding.largest = of_rows.data<float>();
                              rounding.values = values.data();
                              rounding.inverse_scale = inverse.data<float>();
                            }
                            if (orders.transposed) {
                              rounding.largest_of_columns = of_columns.data<float>();
                              rounding.transposed = transposed.data();
                              rounding.inverse_scale_of_columns = inverse_of_columns.data<float>();
                            }
                            round_to_float8(launch, rounding);
                          });
  const Float8Matrix expected = to_float8_by_rows(x, orders);
  if (orders.values) {
    EXPECT_TRUE(at::equal(values.values(), expected.values.view(at::kChar)));
    EXPECT_TRUE(have_equal_bits(inverse.values(), expected.inverse_scale.view({rows})));
  }
  if (orders.transposed) {
    EXPECT_TRUE(at::equal(transposed.values(), expected.transposed.view(at::kChar)));
    EXPECT_TRUE(
        have_equal_bits(inverse_of_columns.values(), expected.inverse_scale_of_transposed.reshape({width})));
  }
}

TEST(CudaFloat8ByRows, RoundsAsTheCpuDoesInEitherOrder) {
  at::manual_seed(1);
  for (auto [rows, width] : {std::pair<int64_t, int64_t>{16, 16}, {64, 64}, {80, 144}, {192, 48}}) {
    for (const Float8Orders orders : {Float8Orders{true, false}, {false, true}, {true, true}}) {
      const at::Tensor sizes = at::exp2(-at::arange(rows) % 7).view({rows, 1});
      const at::Tensor x = (at::randn({rows, width}) * sizes).to(at::kBFloat16);
      expect_by_rows_as_on_cpu(x, orders, 0);
      expect_by_rows_as_on_cpu(x, orders, 3);
    }
  }
}

TEST(CudaFloat8ByRows, KeepsZerosAndEveryMagnitude) {
  at::Tensor x = at::zeros({16, 32}, at::kBFloat16);
  expect_by_rows_as_on_cpu(x, {.values = true, .transposed = true}, 0);
  const at::Tensor bits = at::arange(16256, at::kLong).to(at::kShort);
  expect_by_rows_as_on_cpu(
      bits.view(at::kBFloat16).narrow(0, 128, 16000).view({160, 100}).narrow(1, 0, 96).contiguous(),
      {.values = true, .transposed = true}, 0);
}

TEST_P(CudaFloat8, KeepsZerosAndWhatIsNotFinite) {
  at::Tensor x = at::zeros({16, 16}, at::kBFloat16);
  expect_as_on_cpu(x, {.values = true, .transposed = true}, 0);
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    x[2][3] = bad;
    x[5][1] = 1;
    const Buffer from(x), largest(largest_magnitude(x).view({1}));
    Buffer values = bytes({16, 16}), inverse({1}, at::kFloat);
    round_to_float8(EmulatedLaunch(), {.x = from.data(),
                                       .largest = largest.data<float>(),
                                       .values = values.data(),
                                       .inverse_scale = inverse.data<float>(),
                                       .rows = 16,
                                       .width = 16,
                                       .is_e5m2 = GetParam() == at::kFloat8_e5m2});
    const at::Tensor result = values.values().view(GetParam()).to(at::kFloat) * inverse.values();
    EXPECT_FALSE(result[2][3].isfinite().item<bool>()) << bad;
  }
}

}  // namespace
}  // namespace fsdp::kernels::cuda
