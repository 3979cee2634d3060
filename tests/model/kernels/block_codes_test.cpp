// Numbers in 8 bits (block_codes.h): values, rounding, blocks, and all ways to compute them.

#include "model/kernels/block_codes.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/tensor/seeded_random.h"
#include "base/util/error.h"

namespace fsdp::kernels {
namespace {

at::Tensor random_values(int64_t n, const std::string& name) {
  return at::randn({n}, util::named_generator(3, name), at::TensorOptions(at::kFloat));
}

/// Numbers of several magnitudes.
at::Tensor spread_values(int64_t n, bool is_signed) {
  const at::Tensor values = random_values(n, "value") * at::exp(random_values(n, "magnitude") * 3);
  return is_signed ? values : values.abs();
}

BlockCodes codes_for(int64_t n, bool is_signed, int64_t phase = 0) {
  return {at::zeros({n}, at::kByte), at::zeros({coded_blocks(phase, n)}), phase, is_signed};
}

at::Tensor coded(const at::Tensor& values, bool is_signed) {
  const BlockCodes codes = codes_for(values.numel(), is_signed);
  encode(values, codes);
  return decoded(codes);
}

/// The values above 0 of bitsandbytes' create_dynamic_map(is_signed), ascending, without its 1.
std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> values;
  for (int i = 0; i < 7; ++i) {
    const int parts = 1 << (is_signed ? i : i + 1);
    for (int k = 0; k < parts; ++k) values.push_back(std::pow(10, i - 6) * (0.1 + 0.9 * (k + 0.5) / parts));
  }
  return values;
}

class BlockCodesTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, BlockCodesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "signed" : "unsigned"; });

TEST_P(BlockCodesTest, HaveTheValuesOfTheDynamicMapScaledToEndAtOne) {
  const std::vector<double> map = dynamic_map(GetParam());
  BlockCodes codes = codes_for(256, GetParam());
  codes.scales.fill_(1);
  codes.codes.copy_(at::arange(256));
  const at::Tensor values = decoded(codes);
  const size_t count = GetParam() ? 128 : 256;
  EXPECT_EQ(values[0].item<float>(), 0);
  EXPECT_EQ(values[static_cast<int64_t>(count) - 1].item<float>(), 1);
  for (size_t i = 0; i < map.size(); ++i) {
    const auto code = static_cast<int64_t>(count - map.size() + i);
    EXPECT_NEAR(values[code].item<double>() / (map[i] / map.back()), 1, 1e-4) << code;
    if (GetParam()) EXPECT_EQ(values[128 + code].item<float>(), -values[code].item<float>());
  }
}

TEST_P(BlockCodesTest, BecomeTheNearestValue) {
  BlockCodes all = codes_for(256, GetParam());
  all.scales.fill_(1);
  all.codes.copy_(at::arange(256));
  const at::Tensor values = decoded(all);
  const at::Tensor x = spread_values(20 * kCodedBlock, GetParam());
  const BlockCodes codes = codes_for(x.numel(), GetParam());
  encode(x, codes);
  const at::Tensor shares = x.view({-1, kCodedBlock}).div(codes.scales.unsqueeze(1)).flatten().unsqueeze(1);
  const at::Tensor off = decoded(codes).view({-1, kCodedBlock}).div(codes.scales.unsqueeze(1)).flatten();
  const at::Tensor least = std::get<0>((shares - values).abs().min(1));
  EXPECT_LT(((off - shares.squeeze(1)).abs() - least).max().item<float>(), 1e-6);
  EXPECT_TRUE(codes.scales.equal(x.view({-1, kCodedBlock}).abs().amax(1)));
}

TEST_P(BlockCodesTest, OfDecodedNumbersAreTheSame) {
  for (float scale : {1e-29F, 1e-12F, 0.3F, 1.0F, 3e30F}) {
    const at::Tensor once = coded(spread_values(9 * kCodedBlock + 31, GetParam()).mul(scale), GetParam());
    EXPECT_TRUE(coded(once, GetParam()).equal(once)) << scale;
    EXPECT_TRUE(coded(once.neg().abs(), GetParam()).equal(once.abs())) << scale;
  }
}

TEST_P(BlockCodesTest, AreTheSameByTensorOperations) {
  for (int64_t phase : {0, 1, 255}) {
    for (int64_t n : {1, 200, 256, 1000}) {
      const at::Tensor x = spread_values(n, GetParam());
      const BlockCodes a = codes_for(n, GetParam(), phase), b = codes_for(n, GetParam(), phase);
      encode(x, a);
      encode_composed(x, b);
      EXPECT_TRUE(a.codes.equal(b.codes)) << n << " " << phase;
      EXPECT_TRUE(a.scales.equal(b.scales)) << n << " " << phase;
      EXPECT_TRUE(decoded(a).equal(decoded_composed(b))) << n << " " << phase;
    }
  }
}

TEST_P(BlockCodesTest, OfAPartAreThoseOfTheWholeWhereBlocksAreWhole) {
  const int64_t n = 5 * kCodedBlock, begin = 300, end = 1100;
  const at::Tensor x = spread_values(n, GetParam());
  const BlockCodes whole = codes_for(n, GetParam());
  const BlockCodes part = codes_for(end - begin, GetParam(), phase_of({begin, end}, n));
  encode(x, whole);
  encode(x.slice(0, begin, end), part);
  const int64_t first = 2 * kCodedBlock, count = 2 * kCodedBlock;
  EXPECT_TRUE(narrow(part, first - begin, count).codes.equal(narrow(whole, first, count).codes));
  EXPECT_TRUE(
      decoded(narrow(part, first - begin, count)).equal(decoded(whole).slice(0, first, first + count)));
  EXPECT_TRUE(decoded(narrow(whole, 70, 900)).equal(decoded(whole).slice(0, 70, 970)));
}

TEST_P(BlockCodesTest, OfZerosAndTinyNumbersAreZero) {
  at::Tensor x = at::zeros({2 * kCodedBlock});
  x.slice(0, kCodedBlock).fill_(1e-38F);
  EXPECT_TRUE(coded(x, GetParam()).eq(0).all().item<bool>());
}

TEST_P(BlockCodesTest, WithANumberThatIsNotFiniteHaveNoFiniteScale) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor x = spread_values(3 * kCodedBlock, GetParam());
    x[kCodedBlock + 5].fill_(bad);
    const at::Tensor back = coded(x, GetParam());
    EXPECT_FALSE(back.slice(0, kCodedBlock, 2 * kCodedBlock).isfinite().any().item<bool>()) << bad;
    EXPECT_TRUE(back.slice(0, 0, kCodedBlock).isfinite().all().item<bool>()) << bad;
    const BlockCodes composed = codes_for(x.numel(), GetParam());
    encode_composed(x, composed);
    EXPECT_FALSE(decoded(composed)[kCodedBlock + 5].isfinite().item<bool>()) << bad;
  }
}

// The square root of an average of squares divides a step.
TEST(UnsignedCodes, AreNotZeroForNumbersThatAreNot) {
  at::Tensor x = at::full({kCodedBlock}, 1e-20F);
  x[7].fill_(1);
  EXPECT_GT(coded(x, false).min().item<float>(), 0);
  EXPECT_EQ(coded(x, true)[0].item<float>(), 0);
}

TEST(BlockCodes, NeedTheScalesOfTheirBlocks) {
  BlockCodes codes = codes_for(300, true, 250);
  EXPECT_EQ(codes.scales.numel(), 3);
  codes.phase = 0;
  EXPECT_THROW(encode(at::ones({300}), codes), util::Error);
}

// A run of elements of a tensor keeps the tensor's blocks; a part of its columns has its own.
TEST(BlockCodes, BeginWhereThoseOfTheTensorDo) {
  EXPECT_EQ(phase_of({1000, 2000}, 5000), 1000 % 256);
  EXPECT_EQ(phase_of({0, 100, 10, 3, 7}, 100), 300 % 256);
  EXPECT_EQ(phase_of({20, 100, 10, 3, 4}, 100), 320 % 256);
  EXPECT_EQ(phase_of({20, 100, 10, 3, 7}, 100), 0);
}

}  // namespace
}  // namespace fsdp::kernels
