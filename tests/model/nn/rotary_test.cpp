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

/// ROPE_INIT_FUNCTIONS of transformers 5.24 gave the values for a LlamaConfig with heads of 16.
TEST(RotaryTable, HasTheFrequenciesAndFactorsOfTransformers) {
  ModelOptions yarn = rotary_of(16), longrope = rotary_of(16), dynamic = rotary_of(16);
  yarn.rope_type = "yarn";
  yarn.rope_factor = 4;
  yarn.rope_original_length = longrope.rope_original_length = dynamic.max_position_embeddings = 64;
  ModelOptions fractions = yarn, given_factor = yarn;
  fractions.rope_beta_fast = 3;
  fractions.rope_beta_slow = 0.25;
  fractions.rope_truncate = false;
  fractions.rope_mscale = 0.7;
  fractions.rope_mscale_all_dim = 0.2;
  given_factor.rope_factor = 0.5;
  given_factor.rope_attention_factor = 1.75;
  longrope.rope_type = "longrope";
  longrope.rope_factor = 8;
  longrope.rope_short_factor = {1, 1, 1.5, 1.5, 2, 2, 3, 3};
  longrope.rope_long_factor = {1, 2, 4, 8, 9.5, 16, 32, 48};
  ModelOptions long_given = longrope;
  long_given.rope_attention_factor = 1.5;
  dynamic.rope_type = "dynamic";
  dynamic.rope_factor = 4;
  struct Case {
    ModelOptions options;
    int64_t length;
    std::vector<float> frequencies;
    double factor;
  };
  const std::vector<float> plain = {1,     0.316227764f,   0.1f,   0.0316227786f,
                                    0.01f, 0.00316227786f, 0.001f, 0.000316227786f},
                           of_longer = {1,
                                        0.158113882f,
                                        0.025f,
                                        0.00395284733f,
                                        0.00105263153f,
                                        0.000197642366f,
                                        3.12500015e-05f,
                                        6.58807858e-06f};
  const Case cases[] = {
      {yarn,
       2,
       {1, 0.237170815f, 0.049999997f, 0.00790569466f, 0.0025f, 0.000790569466f, 0.00025f, 7.90569466e-05f},
       1.13862944},
      {fractions,
       2,
       {1, 0.316227764f, 0.0673974231f, 0.0103244754f, 0.0025f, 0.000790569466f, 0.00025f, 7.90569466e-05f},
       1.06744475},
      {given_factor,
       2,
       {1, 0.421637028f, 0.166666672f, 0.0632455572f, 0.02f, 0.00632455572f, 0.002f, 0.000632455572f},
       1.75},
      {longrope,
       64,
       {1, 0.316227764f, 0.0666666701f, 0.0210818499f, 0.005f, 0.00158113893f, 0.00033333333f,
        0.000105409257f},
       1.22474487},
      {longrope, 65, of_longer, 1.22474487},
      {long_given, 65, of_longer, 1.5},
      {dynamic, 64, plain, 1},
      {dynamic,
       160,
       {1, 0.239481375f, 0.057351321f, 0.0137345716f, 0.00328917382f, 0.00078769587f, 0.000188638471f,
        4.51753949e-05f},
       1}};
  for (const auto& [options, length, expected, factor] : cases) {
    RotaryTable table(options);
    for (int64_t before : {length, int64_t{3}, int64_t{200}}) {  // whatever was computed before
      table.angles(before, at::kCPU);
      const auto [cos, sin] = table.angles(length, at::kCPU);
      const auto [other_cos, other_sin] = table.angles_from(1, 1, length, at::kCPU);
      EXPECT_TRUE(other_cos[0].equal(cos[1]) && other_sin[0].equal(sin[1]));
      const at::Tensor found = (sin[1] / factor).asin();
      EXPECT_NEAR(cos[0][0].item<double>(), factor, 1e-6);
      for (size_t i = 1; i < expected.size(); ++i) {
        EXPECT_NEAR(found[static_cast<int64_t>(i)].item<float>() / expected[i], 1, 1e-5)
            << options.rope_type.name() << " " << length << " " << i;
      }
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
