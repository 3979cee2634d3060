#include "nn/initialize.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

TEST(Initialize, DependsOnSeedAndNameOnly) {
  auto options = testing::tiny_options();
  auto shallow = options;
  shallow.num_hidden_layers = 1;
  auto a = testing::make_initialized(options, 7), b = testing::make_initialized(shallow, 7);
  auto c = testing::make_initialized(options, 8);
  const char* name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_TRUE(at::equal(a->named_parameters()[name], b->named_parameters()[name]));
  EXPECT_FALSE(at::equal(a->named_parameters()[name], c->named_parameters()[name]));
  EXPECT_FALSE(
      at::equal(a->named_parameters()[name], a->named_parameters()["model.layers.0.mlp.gate_proj.weight"]));
}

TEST(Initialize, UsesTheRangeForMatricesOnesForNormsZeroForBiases) {
  auto options = testing::tiny_options("gpt2");
  options.hidden_size = 64;
  options.intermediate_size = 256;
  options.initializer_range = 0.02;
  auto model = testing::make_initialized(options);
  auto parameters = model->named_parameters();
  auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("transformer.h.0.mlp.c_fc.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("transformer.h.0.mlp.c_proj.weight"), 0.02 / std::sqrt(6.0), 0.0005);
  EXPECT_TRUE(at::equal(parameters["transformer.ln_f.weight"], at::ones({64})));
  EXPECT_TRUE(at::equal(parameters["transformer.h.0.mlp.c_fc.bias"], at::zeros({256})));
}

}  // namespace
}  // namespace fsdp::nn
