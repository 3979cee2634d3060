#include "nn/rotary.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <set>

#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

void cast_buffers(torch::nn::Module& module, at::ScalarType type) {
  for (auto& buffer : module.named_buffers()) buffer.value().set_data(buffer.value().to(type));
}

TEST(RotaryTable, IsTwoBuffersAndNoParameter) {
  RotaryTable table(4, 10000.0);
  EXPECT_EQ(table.named_buffers().keys(), (std::vector<std::string>{"cos", "sin"}));
  EXPECT_EQ(table.named_buffers()["cos"].sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(table.parameters().empty());

  auto model = testing::make_initialized(testing::tiny_options());
  EXPECT_EQ(model->named_buffers().keys(),
            (std::vector<std::string>{"model.rotary_emb.cos", "model.rotary_emb.sin"}));
}

TEST(RotaryTable, GrowsWhenALongerSequenceComes) {
  RotaryTable table(4, 10000.0);
  at::Tensor buffer = table.named_buffers()["cos"];
  at::Tensor three = table.angles(3, at::kCPU).first;
  at::Tensor before = three.clone();
  EXPECT_EQ(buffer.size(0), 3);
  EXPECT_EQ(table.angles(2, at::kCPU).first.data_ptr(), three.data_ptr());
  EXPECT_EQ(table.angles(7, at::kCPU).first.size(0), 7);
  EXPECT_EQ(buffer.size(0), 7);
  EXPECT_TRUE(three.equal(before));
}

TEST(RotaryTable, ComputesInFloat32AndConvertsLast) {
  RotaryTable fresh(8, 10000.0), early(8, 10000.0), late(8, 10000.0);
  auto [cos, sin] = fresh.angles(1000, at::kCPU);
  cast_buffers(early, at::kBFloat16);
  late.angles(1000, at::kCPU);
  cast_buffers(late, at::kBFloat16);
  for (RotaryTable* table : {&early, &late}) {
    auto [low_cos, low_sin] = table->angles(1000, at::kCPU);
    EXPECT_EQ(low_cos.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(low_cos.equal(cos.to(at::kBFloat16)));
    EXPECT_TRUE(low_sin.equal(sin.to(at::kBFloat16)));
  }
  // Back in fp32 nothing of the rounding is left.
  cast_buffers(late, at::kFloat);
  EXPECT_TRUE(late.angles(1000, at::kCPU).first.equal(cos));
  EXPECT_TRUE(late.angles(1000, at::kCPU).second.equal(sin));
}

TEST(RotaryTable, KeepsItsTableWhenOnlyOneOfItsBuffersIsCast) {
  RotaryTable table(4, 10000.0);
  at::Tensor sin = table.named_buffers()["sin"];
  sin.set_data(sin.to(at::kHalf));
  auto first = table.angles(5, at::kCPU), second = table.angles(5, at::kCPU);
  EXPECT_EQ(first.first.scalar_type(), at::kFloat);
  EXPECT_EQ(first.second.scalar_type(), at::kHalf);
  EXPECT_EQ(first.second.data_ptr(), second.second.data_ptr());
}

TEST(ApplyRotary, RotatesInTheWiderTypeAndReturnsThatOfX) {
  auto [cos, sin] = RotaryTable(8, 10000.0).angles(16, at::kCPU);
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::Tensor x = at::arange(16 * 8, at::kFloat).sin().view({1, 1, 16, 8}).to(type);
    at::Tensor in_float32 = apply_rotary(x.to(at::kFloat), cos, sin);
    at::Tensor found = apply_rotary(x, cos, sin);
    EXPECT_EQ(found.scalar_type(), type);
    EXPECT_TRUE(found.equal(in_float32.to(type)));
    // With angles of x's type the arithmetic is in that type throughout, so further from the truth.
    at::Tensor narrow = apply_rotary(x, cos.to(type), sin.to(type));
    EXPECT_EQ(narrow.scalar_type(), type);
    EXPECT_GT((narrow.to(at::kFloat) - in_float32).norm().item<double>(),
              (found.to(at::kFloat) - in_float32).norm().item<double>());
  }
}

}  // namespace
}  // namespace fsdp::nn
