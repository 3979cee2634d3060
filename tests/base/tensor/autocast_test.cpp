#include "base/tensor/autocast.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/autocast_region.h"

namespace fsdp::util {
namespace {

using testing::AutocastRegion;

at::Tensor weight_of(double value) { return at::full({2, 2}, value).requires_grad_(); }

at::Tensor product_with(const at::Tensor& weight) { return at::linear(at::ones({1, 2}), weight); }

void multiply(const at::Tensor& weight, double factor) {
  at::NoGradGuard no_grad;
  at::Tensor(weight).mul_(factor);
}

// How libtorch behaves; the reason for NoAutocastCache.
TEST(Autocast, KeepsCopiesOfWeightsThatHaveChanged) {
  const at::Tensor weight = weight_of(1);
  const AutocastRegion region;
  EXPECT_EQ(product_with(weight).select(1, 0).item<double>(), 2);
  multiply(weight, 3);
  EXPECT_EQ(product_with(weight).select(1, 0).item<double>(), 2) << "of the copy, not 6";
  {
    const NoAutocastCache no_cache;
    EXPECT_EQ(product_with(weight).select(1, 0).item<double>(), 6);
  }
  EXPECT_EQ(product_with(weight).select(1, 0).item<double>(), 2) << "the copy is still there";
}

TEST(Autocast, KeepsNoCopiesWithoutAutograd) {
  const at::Tensor weight = weight_of(1);
  const AutocastRegion region;
  {
    at::NoGradGuard no_grad;
    product_with(weight);
  }
  EXPECT_TRUE(product_with(weight).requires_grad());
}

TEST(Autocast, NoCacheLeavesNoCopyAndRestoresWhatWas) {
  const at::Tensor weight = weight_of(1);
  const AutocastRegion region;
  {
    const NoAutocastCache no_cache;
    product_with(weight);
    const NoAutocastCache nested;
  }
  multiply(weight, 3);
  EXPECT_EQ(product_with(weight).select(1, 0).item<double>(), 6);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, TypeIsThatOfTheRegion) {
  EXPECT_FALSE(autocast_type(at::kCPU).has_value());
  EXPECT_FALSE(autocast_type(at::kMeta).has_value());
  {
    const AutocastRegion region(at::kHalf);
    EXPECT_EQ(autocast_type(at::kCPU), at::kHalf);
    EXPECT_FALSE(autocast_type(at::kCUDA).has_value());
    const NoAutocast outside;
    EXPECT_FALSE(autocast_type(at::kCPU).has_value());
    EXPECT_EQ(product_with(weight_of(1)).scalar_type(), at::kFloat);
  }
  EXPECT_FALSE(autocast_type(at::kCPU).has_value());
}

TEST(Autocast, ScopeEntersTheRegionsOfAnotherTimeAndLeavesThem) {
  std::optional<AutocastState> inside;
  {
    const AutocastRegion region;
    inside.emplace(at::kCPU);
  }
  const AutocastState outside(at::kCPU);
  std::thread other([&] {
    {
      const AutocastScope scope(*inside);
      EXPECT_EQ(product_with(weight_of(1)).scalar_type(), at::kBFloat16);
      const AutocastScope nested(outside);
      EXPECT_EQ(product_with(weight_of(1)).scalar_type(), at::kFloat);
    }
    EXPECT_FALSE(autocast_type(at::kCPU).has_value());
  });
  other.join();
  EXPECT_FALSE(autocast_type(at::kCPU).has_value());
}

}  // namespace
}  // namespace fsdp::util
