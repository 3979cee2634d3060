#include "model/nn/rotary.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <set>

#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

void cast_buffers(torch::nn::Module& module, at::ScalarType type) {
  for (auto& buffer : module.named_buffers()) buffer.value().set_data(buffer.value().to(type));
}

ModelOptions rotary_of(int64_t head_dim, double theta = 10000.0) {
  ModelOptions options;
  options.head_dim = head_dim;
  options.rope_theta = theta;
  return options;
}

TEST(RotaryTable, IsTwoBuffersAndNoParameter) {
  RotaryTable table(rotary_of(4));
  EXPECT_EQ(table.named_buffers().keys(), (std::vector<std::string>{"cos", "sin"}));
  EXPECT_EQ(table.named_buffers()["cos"].sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(table.parameters().empty());

  auto model = testing::make_initialized(testing::tiny_options());
  EXPECT_EQ(model->named_buffers().keys(),
            (std::vector<std::string>{"model.rotary_emb.cos", "model.rotary_emb.sin"}));
}

/// From transformers 5.23: ROPE_INIT_FUNCTIONS of a LlamaConfig with heads of 16 and these scalings.
TEST(RotaryTable, ScalesItsFrequenciesAsTransformersDoes) {
  ModelOptions llama3 = rotary_of(16), linear = rotary_of(16);
  llama3.rope_type = "llama3";
  llama3.rope_factor = 8;
  llama3.rope_original_length = 64;
  linear.rope_type = "linear";
  linear.rope_factor = 4;
  const std::pair<ModelOptions, std::vector<float>> cases[] = {
      {llama3,
       {1, 0.244384587f, 0.0130422562f, 0.00395284733f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
        3.95284733e-05f}},
      {linear,
       {0.25f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
        7.90569466e-05f}}};
  for (const auto& [options, expected] : cases) {
    // The sine of the angle at position 1, whose frequencies are at most 1.
    at::Tensor found = RotaryTable(options).angles(2, at::kCPU).second[1].asin();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[static_cast<int64_t>(i)].item<float>() / expected[i], 1, 1e-5) << i;
    }
  }
}

TEST(RotaryTable, GrowsWhenALongerSequenceComes) {
  RotaryTable table(rotary_of(4));
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
  RotaryTable fresh(rotary_of(8)), early(rotary_of(8)), late(rotary_of(8));
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
  // After a cast back to fp32 no rounding remains.
  cast_buffers(late, at::kFloat);
  EXPECT_TRUE(late.angles(1000, at::kCPU).first.equal(cos));
  EXPECT_TRUE(late.angles(1000, at::kCPU).second.equal(sin));
}

TEST(RotaryTable, KeepsItsTableWhenOnlyOneOfItsBuffersIsCast) {
  RotaryTable table(rotary_of(4));
  at::Tensor sin = table.named_buffers()["sin"];
  sin.set_data(sin.to(at::kHalf));
  auto first = table.angles(5, at::kCPU), second = table.angles(5, at::kCPU);
  EXPECT_EQ(first.first.scalar_type(), at::kFloat);
  EXPECT_EQ(first.second.scalar_type(), at::kHalf);
  EXPECT_EQ(first.second.data_ptr(), second.second.data_ptr());
}

TEST(RotaryTable, OfLayersWithAWindowServesNoOthers) {
  ModelOptions options = testing::family_options("gemma3_text");
  options.sliding_window = options.sliding_window_pattern = 0;
  const at::Tensor rows = testing::token_rows(0, 2, 11, options.vocab_size);
  const at::Tensor expected = testing::make_initialized(options)->forward(rows);
  options.rope_local_base_freq = 10;
  EXPECT_TRUE(at::equal(testing::make_initialized(options)->forward(rows), expected));
}

TEST(ApplyRotary, RotatesInTheWiderTypeAndReturnsThatOfX) {
  auto [cos, sin] = RotaryTable(rotary_of(8)).angles(16, at::kCPU);
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
