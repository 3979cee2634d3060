#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "model/nn/layers.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

ModelOptions float8_options_of(const std::string& architecture) {
  ModelOptions options = testing::tiny_options(architecture);
  options.hidden_size = 32;
  options.intermediate_size = 48;
  options.num_key_value_heads = 2;
  options.num_hidden_layers = 2;
  options.initializer_range = 0.05;
  return options;
}

std::shared_ptr<Stage> model_in_bfloat16(const ModelOptions& options) {
  auto model = testing::make_initialized(options);
  for (at::Tensor& parameter : model->parameters()) parameter.set_data(parameter.to(at::kBFloat16));
  return model;
}

at::Tensor batch(int64_t step) { return testing::token_rows(step % 3 * 4, 4, 12, 17); }

TEST(Float8Layers, AreTheLinearOnesOfTheBlocksThatFit) {
  const Float8Layers layers = use_float8(*testing::make_initialized(float8_options_of("llama")), {});
  EXPECT_EQ(layers.chosen.size(), 2 * 7);
  EXPECT_EQ(layers.chosen.front(), "model.layers.0.self_attn.q_proj");
  EXPECT_TRUE(layers.unfit.empty() && layers.excluded.empty());
  EXPECT_EQ(use_float8(*testing::make_initialized(float8_options_of("gpt2")), {}).chosen.size(), 2 * 4);

  ModelOptions odd = float8_options_of("llama");
  odd.intermediate_size = 40;
  EXPECT_EQ(use_float8(*testing::make_initialized(odd), {}).unfit,
            (std::vector<std::string>{"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                                      "model.layers.0.mlp.down_proj", "model.layers.1.mlp.gate_proj",
                                      "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"}));
}

TEST(Float8Layers, AreNotThoseThatAPatternNames) {
  const Float8Layers layers =
      use_float8(*testing::make_initialized(float8_options_of("llama")), {"*.0.*", "*.k_proj.weight"});
  EXPECT_EQ(layers.chosen.size(), 6);
  EXPECT_EQ(layers.excluded.size(), 8);
}

TEST(Float8Layers, ComputeOtherNumbersThanBfloat16ThatAreNear) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto model = model_in_bfloat16(float8_options_of(architecture));
    auto gradients = [&] {
      std::map<std::string, at::Tensor> found;
      model->zero_grad();
      testing::loss_of(*model, batch(0)).backward();
      for (const auto& parameter : model->named_parameters()) {
        found[parameter.key()] = parameter.value().grad().to(at::kFloat);
      }
      return found;
    };
    const double loss = testing::loss_of(*model, batch(0)).item<double>();
    const auto expected = gradients();
    const Float8Layers layers = use_float8(*model, {});
    EXPECT_NEAR(testing::loss_of(*model, batch(0)).item<double>(), loss, 0.02) << architecture;
    const auto found = gradients();
    for (const auto& [name, gradient] : expected) {
      EXPECT_LT(((found.at(name) - gradient).norm() / gradient.norm()).item<double>(), 0.25) << name;
    }
    for (const std::string& layer : layers.chosen) {
      const std::string name = layer + ".weight";
      EXPECT_FALSE(at::equal(found.at(name), expected.at(name))) << name << " is computed in bfloat16";
    }
  }
}

TEST(Float8Layers, OfWhichOneIsExcludedShareAnInputWithIt) {
  auto model = model_in_bfloat16(float8_options_of("llama"));
  const double loss = testing::loss_of(*model, batch(0)).item<double>();
  use_float8(*model, {"*.v_proj.weight", "*.up_proj.weight"});
  const at::Tensor found = testing::loss_of(*model, batch(0));
  EXPECT_NEAR(found.item<double>(), loss, 0.02);
  EXPECT_NE(found.item<double>(), loss);
  found.backward();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

TEST(Float8Layers, MultiplyRowsThatDoNotFitInBfloat16) {
  auto model = model_in_bfloat16(float8_options_of("llama"));
  const at::Tensor rows = testing::token_rows(0, 1, 11, 17);
  const at::Tensor expected = model->forward(rows);
  use_float8(*model, {});
  EXPECT_TRUE(at::equal(model->forward(rows), expected));
}

}  // namespace
}  // namespace fsdp::nn
