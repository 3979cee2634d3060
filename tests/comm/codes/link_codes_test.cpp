#include "comm/codes/link_codes.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>

namespace fsdp::comm {
namespace {

constexpr LinkType kTypes[] = {LinkType::kInt8, LinkType::kInt4};

/// Numbers of both signs, of magnitudes that differ between blocks by factors up to 10^6.
at::Tensor uneven_numbers(int64_t numel, int seed = 1) {
  const at::Tensor index = at::arange(numel, at::kDouble) + 1000.0 * seed;
  return (at::sin(index * 12.9898) * at::exp(at::sin(index * 0.003) * 7)).to(at::kFloat);
}

at::Tensor coded(LinkType type, const at::Tensor& values, const CodeRounding& rounding = {}) {
  at::Tensor bytes = at::full({link_bytes(type, values.numel(), 4)}, 0xee, at::kByte);
  encode(type, values, bytes, rounding);
  return bytes;
}

at::Tensor decoded(LinkType type, const at::Tensor& bytes, int64_t numel, at::ScalarType dtype = at::kFloat) {
  at::Tensor values = at::full({numel}, 99, dtype);
  decode(type, bytes, values);
  return values;
}

/// The distance between two codes, for each number.
at::Tensor steps_of(LinkType type, const at::Tensor& values) {
  const int64_t blocks = (values.numel() + kCodeBlock - 1) / kCodeBlock;
  const at::Tensor padded = at::constant_pad_nd(values, {0, blocks * kCodeBlock - values.numel()});
  const at::Tensor largest = padded.view({blocks, kCodeBlock}).abs().amax(1, true);
  return (largest / (type == LinkType::kInt8 ? 127 : 7))
      .expand({blocks, kCodeBlock})
      .reshape({-1})
      .narrow(0, 0, values.numel());
}

TEST(LinkCodes, CountTheirBytes) {
  EXPECT_EQ(link_bytes(LinkType::kExact, 300, 4), 1200);
  EXPECT_EQ(link_bytes(LinkType::kInt8, 256, 4), 258);
  EXPECT_EQ(link_bytes(LinkType::kInt8, 257, 4), 262);  // 4 + 257, and a byte of padding
  EXPECT_EQ(link_bytes(LinkType::kInt4, 256, 4), 130);
  EXPECT_EQ(link_bytes(LinkType::kInt4, 3, 4), 4);
  EXPECT_EQ(link_bytes(LinkType::kInt4, 0, 4), 0);
  EXPECT_EQ(all_reduce_link_bytes(LinkType::kInt8, 1000, 4, 3), 3 * (4 + 334));
  EXPECT_EQ(all_reduce_link_bytes(LinkType::kExact, 1000, 2, 3), 2000);
}

TEST(LinkCodes, AreWithinHalfAStepOfTheNumbers) {
  for (const LinkType type : kTypes) {
    for (const int64_t numel : {int64_t{1}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{5003}}) {
      const at::Tensor values = uneven_numbers(numel);
      const at::Tensor error = (decoded(type, coded(type, values), numel) - values).abs();
      // A scale is rounded up to bfloat16, by at most 1/128.
      EXPECT_TRUE((error <= steps_of(type, values) * 0.504).all().item<bool>()) << numel;
    }
  }
}

TEST(LinkCodes, KeepNumbersThatWereDecoded) {
  for (const LinkType type : kTypes) {
    const at::Tensor once = decoded(type, coded(type, uneven_numbers(1000)), 1000);
    EXPECT_TRUE(at::equal(decoded(type, coded(type, once), 1000), once));
  }
}

TEST(LinkCodes, RoundStochasticallyToTheMean) {
  for (const LinkType type : kTypes) {
    const at::Tensor values = uneven_numbers(700);
    at::Tensor sum = at::zeros({700});
    constexpr int kTimes = 3000;
    for (uint32_t seed = 0; seed < kTimes; ++seed) {
      const at::Tensor one = decoded(type, coded(type, values, {.seed = seed}), 700);
      EXPECT_TRUE(((one - values).abs() <= steps_of(type, values) * 1.01).all().item<bool>());
      sum += one;
    }
    // A step's standard deviation is at most half of it.
    const at::Tensor error = (sum / kTimes - values).abs() / steps_of(type, values);
    EXPECT_LT(error.max().item<float>(), 5 * 0.5 / std::sqrt(kTimes));
  }
}

TEST(LinkCodes, RoundTheSameNumbersAlikeAndOthersAnew) {
  const at::Tensor values = uneven_numbers(256);
  at::Tensor changed = values.clone();
  changed[17] += 1e-6;
  const at::Tensor first = coded(LinkType::kInt4, values, {.seed = 7});
  EXPECT_TRUE(at::equal(first, coded(LinkType::kInt4, values, {.seed = 7})));
  EXPECT_FALSE(at::equal(first, coded(LinkType::kInt4, values, {.seed = 8})));
  EXPECT_FALSE(at::equal(first, coded(LinkType::kInt4, changed, {.seed = 7})));
}

TEST(LinkCodes, OfPiecesDecodeToTheNumbersOfTheWhole) {
  const int64_t numel = 2000, begin = 3 * kCodeBlock;
  const at::Tensor values = uneven_numbers(numel);
  for (const LinkType type : kTypes) {
    for (const auto encode_either : {&encode, &encode_composed}) {
      const auto through = [&](const at::Tensor& numbers, const CodeRounding& rounding) {
        const at::Tensor bytes = at::empty({link_bytes(type, numbers.numel(), 4)}, at::kByte);
        encode_either(type, numbers, bytes, rounding);
        return decoded(type, bytes, numbers.numel());
      };
      const at::Tensor whole = through(values, {.seed = 7});
      const at::Tensor piece = values.narrow(0, begin, numel - begin);
      EXPECT_TRUE(
          at::equal(through(piece, {.seed = 7, .first_block = 3}), whole.narrow(0, begin, numel - begin)));
      EXPECT_FALSE(at::equal(through(piece, {.seed = 7}), whole.narrow(0, begin, numel - begin)));
    }
  }
}

TEST(LinkCodes, ErrorFeedbackKeepsTheSumOfManyCodes) {
  for (const LinkType type : kTypes) {
    const at::Tensor values = uneven_numbers(600), error = at::zeros({600});
    at::Tensor sum = at::zeros({600}, at::kDouble);
    for (int i = 0; i < 50; ++i) sum += decoded(type, coded(type, values, {.error = error}), 600);
    EXPECT_TRUE(
        ((sum + error - values.to(at::kDouble) * 50).abs() <= values.abs() * 1e-4 + 1e-5).all().item<bool>());
    EXPECT_TRUE((error.abs() <= steps_of(type, values) * 0.6).all().item<bool>());
  }
}

TEST(LinkCodes, PassOnWhatIsNotFinite) {
  for (const LinkType type : kTypes) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      at::Tensor values = uneven_numbers(600), error = at::ones({600});
      values[300] = bad;
      const at::Tensor back = decoded(type, coded(type, values, {.error = error}), 600);
      EXPECT_TRUE(back.narrow(0, 256, 256).isnan().all().item<bool>());
      EXPECT_FALSE(back.narrow(0, 0, 256).isnan().any().item<bool>());
      EXPECT_TRUE(error.isfinite().all().item<bool>());
      EXPECT_EQ(error[300].item<float>(), 0);
    }
  }
}

TEST(LinkCodes, ReachGradientsBelowTheLeastFloat16) {
  const at::Tensor values = uneven_numbers(512) * 1e-12;
  const at::Tensor error = (decoded(LinkType::kInt8, coded(LinkType::kInt8, values), 512) - values).abs();
  EXPECT_TRUE((error <= steps_of(LinkType::kInt8, values) * 0.504).all().item<bool>());
  EXPECT_TRUE(
      at::equal(decoded(LinkType::kInt8, coded(LinkType::kInt8, at::zeros({512})), 512), at::zeros({512})));
}

TEST(LinkCodes, TensorOperationsGiveTheSameBits) {
  for (const LinkType type : kTypes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t numel : {1, 2, 256, 1023, 4096}) {
        at::Tensor values = uneven_numbers(numel).clamp(-60000, 60000).to(dtype);
        if (numel > 700) values[700] = std::numeric_limits<float>::quiet_NaN();
        if (numel == 4096) values.narrow(0, 1024, 300).zero_();
        for (const bool stochastic : {false, true}) {
          for (const bool feedback : {false, true}) {
            CodeRounding own, composed;
            if (stochastic) own.seed = composed.seed = 1234;
            if (feedback) {
              own.error = uneven_numbers(numel, 5) * 0.01;
              composed.error = own.error.clone();
            }
            const at::Tensor bytes = coded(type, values, own);
            at::Tensor others = at::full_like(bytes, 0x55);
            encode_composed(type, values, others, composed);
            EXPECT_TRUE(at::equal(bytes, others)) << numel << " " << stochastic << " " << feedback;
            if (feedback) {
              EXPECT_TRUE(at::equal(own.error, composed.error)) << numel;
            }
            EXPECT_TRUE(at::equal(decoded(type, bytes, numel, dtype).nan_to_num(12345.0),
                                  decoded_composed(type, bytes, numel).to(dtype).nan_to_num(12345.0)));
          }
        }
      }
    }
  }
}

TEST(LinkCodes, AddWhatTheyDecode) {
  for (const LinkType type : kTypes) {
    const at::Tensor values = uneven_numbers(999), bytes = coded(type, values);
    at::Tensor sums = uneven_numbers(999, 3);
    const at::Tensor expected = sums + decoded(type, bytes, 999);
    decode_and_add(type, bytes, sums);
    EXPECT_TRUE(at::equal(sums, expected));
  }
}

}  // namespace
}  // namespace fsdp::comm
