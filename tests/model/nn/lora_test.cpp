#include "model/nn/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/util/error.h"
#include "model/nn/layers.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

LoraOptions lora(int64_t rank = 4) {
  LoraOptions options;
  options.rank = rank;
  return options;
}

/// With adapters that have an effect: B is not 0.
std::shared_ptr<Stage> adapted_model(const ModelOptions& model_options, const LoraOptions& options) {
  auto model = testing::make_initialized(model_options);
  add_lora(*model, options);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model->named_parameters()) {
    const auto adapter = lora_name(parameter.key());
    if (!adapter) continue;
    const double shift = static_cast<double>(adapter->layer.size());
    const at::Tensor values = at::arange(parameter.value().numel(), at::kFloat).add(shift).sin().mul(0.1);
    parameter.value().copy_(values.view(parameter.value().sizes()));
    if (adapter->part == LoraPart::kMagnitude) parameter.value().add_(1);
  }
  return model;
}

at::Tensor logits(Stage& model) {
  const at::NoGradGuard no_grad;
  return model.forward(testing::token_rows(0, 2, 11, 17).narrow(1, 0, 11));
}

std::map<std::string, at::Tensor> parameters_of(const Stage& model) {
  std::map<std::string, at::Tensor> found;
  for (const auto& parameter : model.named_parameters()) found[parameter.key()] = parameter.value();
  return found;
}

/// Computes what the adapted model does, without adapters.
std::shared_ptr<Stage> merged(const ModelOptions& model_options, const Stage& adapted,
                              const LoraOptions& options) {
  auto model = testing::make_initialized(model_options);
  const auto trained = parameters_of(adapted);
  const at::NoGradGuard no_grad;
  for (const auto& item : model->named_modules("", /*include_self=*/false)) {
    const auto* linear = dynamic_cast<Linear*>(item.value().get());
    const auto part = [&](LoraPart which) {
      const auto found = trained.find(lora_parameter(item.key(), which));
      return found == trained.end() ? at::Tensor() : found->second;
    };
    if (linear == nullptr || !part(LoraPart::kA).defined()) continue;
    at::Tensor(linear->weight())
        .copy_(merged_weight(linear->weight(), part(LoraPart::kA), part(LoraPart::kB),
                             part(LoraPart::kMagnitude), lora_scale(options), linear->is_transposed()));
  }
  return model;
}

TEST(Lora, ComputesWhatTheMergedWeightsDo) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (const bool fused : {true, false}) {
      for (const bool dora : {false, true}) {
        ModelOptions model_options = testing::tiny_options(architecture);
        model_options.fused_kernels = fused;
        model_options.attention_bias = std::string(architecture) == "llama";
        LoraOptions options = lora(3);
        options.dora = dora;
        options.use_rslora = !dora;
        options.targets = {"*1.*", std::string(architecture) == "llama" ? "*q_proj" : "*c_attn"};
        auto model = adapted_model(model_options, options);
        const at::Tensor expected = logits(*merged(model_options, *model, options));
        EXPECT_TRUE(at::allclose(logits(*model), expected, 1e-4, 1e-5))
            << architecture << ", fused " << fused << ", dora " << dora << ": "
            << (logits(*model) - expected).abs().max();
        EXPECT_FALSE(at::allclose(logits(*testing::make_initialized(model_options)), expected, 1e-2));
      }
    }
  }
}

TEST(Lora, ScalesByAlphaOverTheRankOrItsRoot) {
  LoraOptions options = lora(16);
  options.alpha = 8;
  EXPECT_DOUBLE_EQ(lora_scale(options), 0.5);
  options.use_rslora = true;
  EXPECT_DOUBLE_EQ(lora_scale(options), 2);
}

TEST(Lora, TrainsTheAdaptersAlone) {
  for (const char* architecture : {"llama", "gpt2"}) {
    LoraOptions options = lora(2);
    options.dora = true;
    auto model = adapted_model(testing::tiny_options(architecture), options);
    testing::loss_of(*model, testing::token_rows(0, 2, 9, 17)).backward();
    for (const auto& [name, parameter] : parameters_of(*model)) {
      EXPECT_EQ(parameter.requires_grad(), lora_name(name).has_value()) << name;
      EXPECT_EQ(parameter.grad().defined(), lora_name(name).has_value()) << name;
    }
  }
}

// By finite differences, along the gradient.
TEST(Lora, HasTheGradientsOfWhatItComputes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto model = adapted_model(testing::tiny_options(architecture), lora(2));
    const at::Tensor rows = testing::token_rows(0, 2, 9, 17);
    testing::loss_of(*model, rows).backward();
    double slope = 0;
    std::vector<at::Tensor> trained, steps;
    for (const auto& [name, parameter] : parameters_of(*model)) {
      if (!parameter.requires_grad()) continue;
      trained.push_back(parameter);
      steps.push_back(parameter.grad().clone());
      slope += parameter.grad().square().sum().item<double>();
    }
    const auto loss_at = [&](double length) {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < trained.size(); ++i) trained[i].add_(steps[i], length);
      const double loss = testing::loss_of(*model, rows).item<double>();
      for (size_t i = 0; i < trained.size(); ++i) trained[i].sub_(steps[i], length);
      return loss;
    };
    const double length = 0.001 / std::sqrt(slope);
    EXPECT_NEAR((loss_at(length) - loss_at(-length)) / (2 * length), slope, 0.01 * slope) << architecture;
  }
}

TEST(Lora, DropsItsInputWhileTrainingOnly) {
  LoraOptions options = lora(4);
  options.dropout = 0.5;
  auto model = adapted_model(testing::tiny_options(), options);
  options.dropout = 0;
  const at::Tensor plain = logits(*adapted_model(testing::tiny_options(), options));
  EXPECT_TRUE(at::equal(logits(*model), plain)) << "without a choice of what to drop";
  const at::NoGradGuard no_grad;
  const auto with_key = [&](uint64_t key) {
    return model->forward(testing::token_rows(0, 2, 11, 17).narrow(1, 0, 11),
                          {.dropout = DropoutChoice{.key = key}});
  };
  EXPECT_FALSE(at::allclose(with_key(1), plain));
  EXPECT_TRUE(at::equal(with_key(1), with_key(1)));
  EXPECT_FALSE(at::equal(with_key(1), with_key(2)));
}

TEST(Lora, StartsAsPeftDoes) {
  const at::Tensor a = at::empty({4 * 12}), b = at::ones({20 * 4});
  initialize_lora("layer.lora_A.weight", {4, 12}, {{0, 48}}, a, 5);
  initialize_lora("layer.lora_B.weight", {20, 4}, {{0, 80}}, b, 5);
  EXPECT_EQ(b.abs().max().item<double>(), 0);
  const double bound = 1 / std::sqrt(12.0), largest = a.abs().max().item<double>();
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.8 * bound);
  const at::Tensor parts = at::empty({10}), other = at::empty({48});
  initialize_lora("layer.lora_A.weight", {4, 12}, {{2, 5}, {40, 47}}, parts, 5);
  EXPECT_TRUE(at::equal(parts, at::cat({a.narrow(0, 2, 3), a.narrow(0, 40, 7)})));
  initialize_lora("other.lora_A.weight", {4, 12}, {{0, 48}}, other, 5);
  EXPECT_FALSE(at::equal(a, other));
}

TEST(Lora, RefusesUnknownTargetsAndRanksThatAreTooLarge) {
  const auto message = [](const LoraOptions& options) {
    try {
      add_lora(*testing::make_initialized(testing::tiny_options()), options);
    } catch (const util::Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  LoraOptions options = lora();
  options.targets = {"*q_porj"};
  EXPECT_NE(message(options).find("did you mean \"*q_proj\"?"), std::string::npos) << message(options);
  EXPECT_NE(message(lora(13)).find("lora.rank must be at most 12"), std::string::npos) << message(lora(13));
}

TEST(Lora, NamesAreThoseOfPeft) {
  EXPECT_EQ(lora_parameter("model.layers.0.mlp.up_proj", LoraPart::kB),
            "model.layers.0.mlp.up_proj.lora_B.weight");
  EXPECT_EQ(lora_name("x.q_proj.lora_A.weight")->layer, "x.q_proj");
  EXPECT_EQ(lora_name("x.q_proj.lora_magnitude_vector.weight")->part, LoraPart::kMagnitude);
  EXPECT_FALSE(lora_name("x.q_proj.weight"));
}

}  // namespace
}  // namespace fsdp::nn
