#include "model/kernels/cast.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>

namespace fsdp::kernels {
namespace {

TEST(Cast, RoundsLargeTensorsAsLibtorchDoes) {
  for (const int64_t n : {1'000L, 2'000'003L}) {  // the latter is written past the cache
    at::Tensor from = at::randn({n}) * at::randn({n}).exp();
    from[0] = 1.00390625;  // ties go to even
    from[1] = 1.01171875;
    from[2] = -std::numeric_limits<float>::infinity();
    from[3] = std::numeric_limits<float>::max();
    from[4] = std::numeric_limits<float>::denorm_min() * 0x20000;
    const at::Tensor to = at::empty({n + 1}, at::kBFloat16).narrow(0, 1, n);  // not aligned
    cast(to, from);
    EXPECT_TRUE(at::equal(to, from.to(at::kBFloat16))) << n;
    EXPECT_NE(to[4].item<float>(), 0);
    from.fill_(std::numeric_limits<float>::quiet_NaN());
    cast(to, from);
    EXPECT_TRUE(to.isnan().all().item<bool>());
  }
}

TEST(Cast, CopiesOtherTypes) {
  const at::Tensor from = at::randn({1'500'000});
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kDouble}) {
    const at::Tensor to = at::empty_like(from, type);
    cast(to, from);
    EXPECT_TRUE(at::equal(to, from.to(type))) << c10::toString(type);
  }
}

}  // namespace
}  // namespace fsdp::kernels
