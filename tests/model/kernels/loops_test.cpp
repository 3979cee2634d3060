#include "model/kernels/cpu/loops.h"

#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace fsdp::kernels::cpu {

namespace baseline {
extern const Level kLevel;
}

namespace {

TEST(Loops, OfAllLevelsComputeAlike) {
  const Loops& best = loops(Element::kFloat);
  std::vector<float> gate, up;
  for (int i = -4000; i < 4000; ++i) {
    gate.push_back(static_cast<float>(i) * 0.01F);
    up.push_back(1 + static_cast<float>(i % 7));
  }
  const auto n = static_cast<int64_t>(gate.size());
  std::vector<float> y(gate.size()), same(gate.size());
  const auto into = [&](std::vector<float>& result) {
    return SwiGluRows{.gate = gate.data(), .up = up.data(), .y = result.data(), .rows = 1, .width = n};
  };
  best.swiglu(into(y));
  baseline::kLevel.loops[0].swiglu(into(same));
  for (size_t i = 0; i < gate.size(); ++i) {
    const double exact = double{gate[i]} / (1 + std::exp(-double{gate[i]})) * double{up[i]};
    EXPECT_NEAR(y[i], exact, 4e-7 * std::abs(exact) + 1e-30) << best.name << " at " << gate[i];
    EXPECT_NEAR(same[i], exact, 4e-7 * std::abs(exact) + 1e-30) << gate[i];
  }
}

TEST(Loops, OfAllLevelsRoundAlikeToBf16) {
  const AttentionLoops* best = attention_loops(Element::kBFloat16);
  if (best == nullptr) GTEST_SKIP() << "no loops of their own for this CPU";
  std::vector<float> x{0.0F,
                       -0.0F,
                       1.0F,
                       1.00390625F,
                       1.01171875F,
                       -1.00390626F,
                       3.4e38F,
                       1.2e-38F,
                       -1.2e-38F,
                       std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (int i = 1; i < 90; ++i)
    x.push_back(std::sin(static_cast<float>(i)) * std::exp(static_cast<float>(i - 40)));
  const auto n = static_cast<int64_t>(x.size());
  for (int64_t width = 1; width <= n; ++width) {
    std::vector<uint16_t> found(x.size(), 7), expected(x.size(), 7);
    best->round(x.data(), found.data(), width, 1, width);
    baseline::kLevel.attention[1].round(x.data(), expected.data(), width, 1, width);
    ASSERT_EQ(found, expected) << width;
  }
  // Subnormal numbers may count as 0.
  const float small[] = {1e-39F, -1e-39F};
  uint16_t rounded[2];
  best->round(small, rounded, 2, 1, 2);
  EXPECT_LT(rounded[0] & 0x7fff, 0x80);
  EXPECT_LT(rounded[1] & 0x7fff, 0x80);
}

TEST(Loops, OfAllLevelsNormAndActivateAlike) {
  constexpr int64_t kRows = 3, kWidth = 37;
  std::vector<float> x(kRows * kWidth), weight(kWidth), bias(kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 3 * std::sin(static_cast<float>(i * i));
  for (size_t i = 0; i < kWidth; ++i) {
    weight[i] = 1 + 0.1F * static_cast<float>(i % 5);
    bias[i] = 0.2F * static_cast<float>(i % 3);
  }
  struct Results {
    std::vector<float> normed = std::vector<float>(kRows * kWidth), dx = normed, dgelu = normed,
                       gelu = normed;
    std::vector<float> dweight = std::vector<float>(kWidth), dbias = dweight, of_gelu = dweight,
                       sums = dweight;
    std::vector<float> mean = std::vector<float>(kRows), reciprocal = mean;
  };
  auto run = [&](const Loops& level) {
    Results r;
    level.layer_norm({.x = x.data(),
                      .weight = weight.data(),
                      .bias = bias.data(),
                      .y = r.normed.data(),
                      .mean = r.mean.data(),
                      .reciprocal = r.reciprocal.data(),
                      .rows = kRows,
                      .width = kWidth,
                      .epsilon = 1e-5F});
    level.layer_norm_backward({.dy = r.normed.data(),
                               .x = x.data(),
                               .weight = weight.data(),
                               .mean = r.mean.data(),
                               .reciprocal = r.reciprocal.data(),
                               .dx = r.dx.data(),
                               .dweight = r.dweight.data(),
                               .dbias = r.dbias.data(),
                               .rows = kRows,
                               .width = kWidth});
    level.bias_gelu({.x = x.data(), .bias = bias.data(), .y = r.gelu.data(), .rows = kRows, .width = kWidth});
    level.bias_gelu_backward({.dy = x.data(),
                              .x = x.data(),
                              .bias = bias.data(),
                              .dx = r.dgelu.data(),
                              .dbias = r.of_gelu.data(),
                              .rows = kRows,
                              .width = kWidth});
    level.add_rows(x.data(), r.sums.data(), kRows, kWidth);
    return r;
  };
  const Results best = run(loops(Element::kFloat)), plain = run(baseline::kLevel.loops[0]);
  for (auto member : {&Results::normed, &Results::dx, &Results::gelu, &Results::dgelu, &Results::dweight,
                      &Results::dbias, &Results::of_gelu, &Results::sums}) {
    for (size_t i = 0; i < (best.*member).size(); ++i) {
      EXPECT_NEAR((best.*member)[i], (plain.*member)[i], 2e-5) << i;
    }
  }
}

// Products of all fp16 numbers, rounded to fp16.
TEST(Loops, OfAllLevelsRoundToHalfAsLibtorchDoes) {
  std::vector<c10::Half> x;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    x.push_back(c10::Half(static_cast<uint16_t>(bits), c10::Half::from_bits()));
    x.emplace_back(0.0F);  // rotated by the angle 0: the first of a pair times cos
  }
  const auto pairs = static_cast<int64_t>(x.size() / 2);
  const std::vector<float> sin(2, 0.0F);
  for (const Loops& level :
       {loops(Element::kHalf), baseline::kLevel.loops[static_cast<int>(Element::kHalf)]}) {
    for (float factor : {1.0F, 0.37F, 1e-3F, 3.3e-6F, 5.0F}) {
      const std::vector<float> cos(2, factor);
      std::vector<c10::Half> y(x.size());
      level.rotary({.x = x.data(),
                    .y = y.data(),
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .rows = pairs,
                    .tokens = 1,
                    .heads = 1,
                    .head_dim = 2,
                    .stride = 2});
      for (size_t i = 0; i < x.size(); i += 2) {
        const c10::Half expected(static_cast<float>(x[i]) * factor);
        if (std::isnan(static_cast<float>(expected))) {
          EXPECT_TRUE(std::isnan(static_cast<float>(y[i]))) << level.name << " at " << i / 2;
        } else {
          EXPECT_EQ(y[i].x, expected.x) << level.name << " at " << i / 2 << " times " << factor;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::cpu
