#include "shard/engine/gradient_buffer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/api/communicator.h"
#include "model/kernels/gradient_sink.h"
#include "shard/units/unit_layout.h"

namespace fsdp::shard {
namespace {

struct TwoParameters {
  explicit TwoParameters(at::ScalarType dtype)
      : parameters{{"a", at::ones({2, 3}, dtype).requires_grad_()},
                   {"b", at::full({5}, 2.0, dtype).requires_grad_()}},
        layout({{"a", {2, 3}}, {"b", {5}}}, 4) {}

  const at::Tensor& a() const { return parameters[0].tensor; }
  const at::Tensor& b() const { return parameters[1].tensor; }
  /// Gradient 3 of a, 2 of b; twice over.
  void backward() const {
    for (int i = 0; i < 2; ++i) ((a() * 3).sum() + (b() * b()).sum() / 2).backward();
  }

  std::vector<NamedParameter> parameters;
  FlatLayout layout;  // 11 elements, padded to 12
};

at::Tensor expected_gradient(at::ScalarType dtype) {
  return at::cat({at::full({6}, 6.0, dtype), at::full({5}, 4.0, dtype), at::zeros({1}, dtype)});
}

TEST(GradientBuffer, AccumulatesInTheTypeOfTheParameters) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TwoParameters two(dtype);
    GradientBuffer buffer(two.parameters, two.layout, dtype);
    buffer.attach(nullptr);
    two.backward();
    EXPECT_FALSE(two.a().grad().defined());
    EXPECT_TRUE(at::equal(buffer.detach(), expected_gradient(dtype)));
    EXPECT_FALSE(buffer.is_attached());
  }
}

TEST(GradientBuffer, GivesKernelsAPlaceInIt) {
  TwoParameters two(at::kBFloat16);
  GradientBuffer buffer(two.parameters, two.layout, at::kFloat);
  EXPECT_FALSE(kernels::take_gradient_place(two.a(), at::kFloat)) << "there is no buffer yet";
  buffer.attach(nullptr);
  EXPECT_FALSE(kernels::take_gradient_place(two.a(), at::kBFloat16)) << "sums are in fp32";
  auto place = kernels::take_gradient_place(two.a(), at::kFloat);
  ASSERT_TRUE(place);
  EXPECT_FALSE(place->adds);
  place->memory.fill_(1);
  two.backward();
  place = kernels::take_gradient_place(two.a(), at::kFloat);
  EXPECT_TRUE(place && place->adds);
  EXPECT_TRUE(at::equal(buffer.detach().narrow(0, 0, 6), at::full({6}, 7.0)));
}

TEST(GradientBuffer, IsZeroWhereNoGradientCame) {
  TwoParameters two(at::kFloat);
  GradientBuffer buffer(two.parameters, two.layout, at::kFloat);
  for (int pass = 0; pass < 2; ++pass) {
    buffer.attach(nullptr);
    two.a().sum().backward();
    EXPECT_TRUE(at::equal(buffer.detach(), at::cat({at::ones({6}), at::zeros({6})})));
  }
}

TEST(GradientBuffer, AddsLowPrecisionGradientsInFp32AndDropsThemAtOnce) {
  TwoParameters two(at::kBFloat16);
  GradientBuffer buffer(two.parameters, two.layout, at::kFloat);
  buffer.attach(nullptr);
  two.backward();
  EXPECT_FALSE(two.a().grad().defined());
  EXPECT_FALSE(two.b().grad().defined());
  EXPECT_TRUE(at::equal(buffer.detach(), expected_gradient(at::kFloat)));
}

TEST(GradientBuffer, Fp32SumsKeepWhatBf16WouldLose) {
  TwoParameters two(at::kBFloat16);
  GradientBuffer buffer(two.parameters, two.layout, at::kFloat);
  buffer.attach(nullptr);
  (two.a() * 256).sum().backward();
  for (int i = 0; i < 10; ++i) two.a().sum().backward();  // 256 + 1 is 256 in bf16
  EXPECT_EQ(buffer.detach()[0].item<float>(), 266);
}

TEST(GradientBuffer, TakesItsMemoryFromThePoolAndGivesItBack) {
  auto pool = std::make_shared<BufferPool>(std::make_shared<comm::SingleCommunicator>());
  TwoParameters two(at::kFloat);
  GradientBuffer buffer(two.parameters, two.layout, at::kFloat);
  buffer.attach(pool.get());
  two.backward();
  EXPECT_EQ(pool->account().live_gradients, 12 * 4);
  buffer.detach();
  EXPECT_EQ(pool->account().live_gradients, 0);
}

TEST(GradientBuffer, LeavesParametersAloneOnceItIsGone) {
  TwoParameters two(at::kBFloat16);
  { GradientBuffer buffer(two.parameters, two.layout, at::kFloat); }
  two.backward();
  EXPECT_EQ(two.a().grad().scalar_type(), at::kBFloat16);
}

TEST(GradientBuffer, FrozenParametersGetNone) {
  TwoParameters two(at::kFloat);
  two.b().requires_grad_(false);
  GradientBuffer buffer(two.parameters, two.layout, at::kFloat);
  buffer.attach(nullptr);
  (two.a() * two.b().sum()).sum().backward();
  EXPECT_FALSE(two.b().grad().defined());
  EXPECT_EQ(buffer.detach().sum().item<float>(), 60);
}

}  // namespace
}  // namespace fsdp::shard
