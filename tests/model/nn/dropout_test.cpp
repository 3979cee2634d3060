#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "model/nn/layers.h"
#include "model/nn/loss.h"
#include "model/nn/recompute.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

ModelOptions dropping(const std::string& architecture, bool fused = true) {
  ModelOptions options = testing::tiny_options(architecture);
  options.embedding_dropout = 0.1;
  options.attention_dropout = 0.2;
  options.hidden_dropout = 0.3;
  options.fused_kernels = fused;
  return options;
}

at::Tensor loss(Stage& model, int64_t first_row, int64_t rows, std::optional<DropoutChoice> dropout) {
  const at::Tensor tokens = testing::token_rows(first_row, rows, 9, 17);
  return loss_of(model, tokens.narrow(1, 0, 9), tokens.narrow(1, 1, 9).contiguous(), {.dropout = dropout});
}

TEST(ModelDropout, HappensOnlyWhereItIsAskedFor) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto model = testing::make_initialized(dropping(architecture));
    auto plain = testing::make_initialized(testing::tiny_options(architecture));
    EXPECT_TRUE(at::equal(loss(*model, 0, 4, std::nullopt), loss(*plain, 0, 4, std::nullopt)));
    EXPECT_FALSE(at::equal(loss(*model, 0, 4, DropoutChoice{1, 0}), loss(*plain, 0, 4, std::nullopt)));
  }
}

TEST(ModelDropout, OfEachPlaceIsAChoiceOfItsOwn) {
  for (double ModelOptions::*place :
       {&ModelOptions::embedding_dropout, &ModelOptions::attention_dropout, &ModelOptions::hidden_dropout}) {
    for (const char* architecture : {"llama", "gpt2"}) {
      ModelOptions options = testing::tiny_options(architecture);
      options.*place = 0.5;
      auto model = testing::make_initialized(options);
      EXPECT_NE(loss(*model, 0, 4, DropoutChoice{1, 0}).item<double>(),
                loss(*model, 0, 4, std::nullopt).item<double>());
    }
  }
  StageContext first, second;
  first.dropout = second.dropout = DropoutChoice{1, 0};
  second.layer = 1;
  const at::Tensor x = at::ones({2, 64});
  const at::Tensor dropped = dropout(x, 0.5, DropoutPlace::kAttentionOutput, first);
  EXPECT_FALSE(at::equal(dropped, dropout(x, 0.5, DropoutPlace::kAttentionOutput, second)));
  EXPECT_FALSE(at::equal(dropped, dropout(x, 0.5, DropoutPlace::kFeedForwardOutput, first)));
}

TEST(ModelDropout, DoesNotDependOnHowRowsAreBatched) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto model = testing::make_initialized(dropping(architecture));
    const double together = loss(*model, 0, 4, DropoutChoice{1, 20}).item<double>();
    double apart = 0;
    for (int64_t row = 0; row < 4; ++row) {
      apart += loss(*model, row, 1, DropoutChoice{1, 20 + row}).item<double>() / 4;
    }
    EXPECT_NEAR(together, apart, 1e-5) << architecture;
  }
}

TEST(ModelDropout, IsRepeatedByRecomputation) {
  for (const char* architecture : {"llama", "gpt2"}) {
    std::vector<std::vector<at::Tensor>> gradients;
    for (bool recomputes : {false, true}) {
      auto model = testing::make_initialized(dropping(architecture));
      if (recomputes) checkpoint_activations(*model, {"block"});
      loss(*model, 0, 4, DropoutChoice{3, 8}).backward();
      auto& found = gradients.emplace_back();
      for (const at::Tensor& parameter : model->parameters()) found.push_back(parameter.grad());
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << architecture << " " << i;
    }
  }
}

TEST(ModelDropout, AgreesBetweenFusedAndComposedKernels) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto fused = testing::make_initialized(dropping(architecture));
    auto composed = testing::make_initialized(dropping(architecture, false));
    EXPECT_NEAR(loss(*fused, 0, 4, DropoutChoice{3, 8}).item<double>(),
                loss(*composed, 0, 4, DropoutChoice{3, 8}).item<double>(), 1e-5);
  }
}

TEST(AttentionDropout, IsTheAttentionOfTheWeightsThatAreLeft) {
  // p is so small that nothing is dropped: compares the composed attention with the kernels'.
  for (const char* architecture : {"llama", "gpt2"}) {
    ModelOptions options = testing::tiny_options(architecture);
    options.attention_dropout = 1e-12;
    auto model = testing::make_initialized(options);
    EXPECT_NEAR(loss(*model, 0, 4, DropoutChoice{1, 0}).item<double>(),
                loss(*model, 0, 4, std::nullopt).item<double>(), 1e-5);
  }
}

}  // namespace
}  // namespace fsdp::nn
