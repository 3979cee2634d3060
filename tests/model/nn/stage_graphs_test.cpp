// What device graphs of blocks require of kernels: backward must not free or change saved tensors.

#include "model/nn/stage_graphs.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

TEST(StageGraphs, MayAskABlockForItsGradientsAgain) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const ModelOptions options = testing::tiny_options(architecture);
      auto model = testing::make_initialized(options);
      const bool llama = options.architecture == "llama";
      auto block = std::dynamic_pointer_cast<Stage>(
          model->named_modules()[llama ? "model.layers.0" : "transformer.h.0"]);
      ASSERT_NE(block, nullptr);
      for (const auto& parameter : block->parameters()) parameter.set_data(parameter.to(dtype));
      StageContext context;
      const at::Tensor angles = at::arange(8 * 6, at::kFloat).view({8, 6});
      context.rotary_cos = angles.cos();
      context.rotary_sin = angles.sin();
      const at::Tensor x =
          (at::arange(2 * 8 * 12, at::kFloat) * 0.3).sin().view({2, 8, 12}).to(dtype).requires_grad_();
      const at::Tensor output = block->forward(x, context);
      torch::autograd::variable_list inputs = block->parameters();
      inputs.push_back(x);
      const auto once =
          torch::autograd::grad({output}, inputs, {at::ones_like(output)}, /*retain_graph=*/true);
      const auto again =
          torch::autograd::grad({output}, inputs, {at::ones_like(output)}, /*retain_graph=*/true);
      for (size_t i = 0; i < once.size(); ++i)
        EXPECT_TRUE(once[i].equal(again[i])) << architecture << ", " << i;
    }
  }
}

}  // namespace
}  // namespace fsdp::nn
