#include "kernels/cpu/loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fsdp::kernels::cpu {

namespace baseline {
extern const Loops kFloatLoops;
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
  best.swiglu(gate.data(), up.data(), y.data(), n);
  baseline::kFloatLoops.swiglu(gate.data(), up.data(), same.data(), n);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double exact = double{gate[i]} / (1 + std::exp(-double{gate[i]})) * double{up[i]};
    EXPECT_NEAR(y[i], exact, 4e-7 * std::abs(exact) + 1e-30) << best.name << " at " << gate[i];
    EXPECT_NEAR(same[i], exact, 4e-7 * std::abs(exact) + 1e-30) << gate[i];
  }
}

}  // namespace
}  // namespace fsdp::kernels::cpu
