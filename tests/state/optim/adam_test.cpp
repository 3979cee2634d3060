#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "state/optim/element_optimizers.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

OptimizerOptions adamw_options(bool fused) {
  OptimizerOptions options;
  options.name = "adamw";
  options.fused = fused;
  return options;
}

OptimizerOptions adam_options(bool fused) {
  OptimizerOptions options = adamw_options(fused);
  options.name = "adam";
  options.weight_decay = 0.1;
  return options;
}

TEST(AdamW, NamesItsStatesAsPyTorchDoes) {
  auto optimizer = make_optimizer(adamw_options(true), {parameter_of(at::ones({3}))});
  EXPECT_EQ(optimizer->state_names(), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  for (const std::string& name : optimizer->state_names())
    EXPECT_TRUE(optimizer->state(name, 0).equal(at::zeros({3})));
}

// One element in double precision, from the definition of the method: the averages as sums over all steps.
TEST(AdamW, AgreesWithTheDefinitionInDoublePrecision) {
  const double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  const std::vector<double> gradients = {0.5, -0.25, 0.0, 1.5, 0.125, -2.0};
  for (bool fused : {true, false}) {
    auto optimizer = make_optimizer(adamw_options(fused), {parameter_of(at::full({19}, 0.75))});
    double expected = 0.75;
    for (size_t t = 1; t <= gradients.size(); ++t) {
      double mean = 0, square = 0;
      for (size_t i = 1; i <= t; ++i) {
        auto age = static_cast<double>(t - i);
        mean += (1 - beta1) * std::pow(beta1, age) * gradients[i - 1];
        square += (1 - beta2) * std::pow(beta2, age) * gradients[i - 1] * gradients[i - 1];
      }
      mean /= 1 - std::pow(beta1, static_cast<double>(t));
      square /= 1 - std::pow(beta2, static_cast<double>(t));
      expected = expected * (1 - lr * weight_decay) - lr * mean / (std::sqrt(square) + eps);
      optimizer->step({at::full({19}, gradients[t - 1])}, lr);
      for (int64_t i = 0; i < 19; ++i) {
        EXPECT_NEAR(optimizer->parameters()[0].value[i].item<double>(), expected, 3e-7) << "step " << t;
      }
    }
  }
}

// Figures of torch.optim.AdamW, version 2.11, on the same parameters and gradients.
TEST(AdamW, GivesPyTorchsFigures) {
  for (bool fused : {true, false}) {
    auto optimizer =
        make_optimizer(adamw_options(fused), {parameter_of(at::tensor({0.5f, -1.f, 2.f, 0.f, -0.25f}))});
    for (int t = 1; t <= 3; ++t) {
      auto s = static_cast<float>(t);
      optimizer->step({at::tensor({0.1f * s, -0.2f, 0.3f / s, 0.f, 1.f})}, 0.01);
    }
    auto expect_close = [](const at::Tensor& found, const at::Tensor& expected) {
      EXPECT_TRUE(found.allclose(expected, 2e-7, 0)) << found << expected;
    };
    expect_close(optimizer->parameters()[0].value,
                 at::tensor({0.469506115f, -0.967033088f, 1.96576476f, 0.f, -0.27922076f}));
    expect_close(optimizer->state("exp_avg", 0),
                 at::tensor({0.0560999997f, -0.0542000011f, 0.0478000045f, 0.f, 0.270999998f}));
    expect_close(optimizer->state("exp_avg_sq", 0),
                 at::tensor({0.00685125031f, 0.00570500037f, 0.00563000003f, 0.f, 0.142625004f}));
  }
}

TEST(AdamW, FusedAgreesWithComposed) {
  at::Tensor value = random_values(1000, "value"), gradient = random_values(1000, "gradient");
  auto fused = make_optimizer(adamw_options(true), {parameter_of(value)});
  auto composed = make_optimizer(adamw_options(false), {parameter_of(value)});
  take_steps(*fused, 20, gradient, 1e-2);
  take_steps(*composed, 20, gradient, 1e-2);
  EXPECT_TRUE(fused->parameters()[0].value.allclose(composed->parameters()[0].value, 1e-5, 1e-6));
  EXPECT_TRUE(fused->state("exp_avg_sq", 0).allclose(composed->state("exp_avg_sq", 0), 1e-5, 1e-9));
}

// With a constant gradient the corrected averages are the gradient and its square whatever the step is, so
// each step moves by the rate: for a parameter whose first gradient comes late, too.
TEST(AdamW, CorrectsTheBiasByTheStepsOfTheParameter) {
  for (bool fused : {true, false}) {
    OptimizerOptions options = adamw_options(fused);
    options.weight_decay = 0;
    auto optimizer = make_optimizer(options, {parameter_of(at::zeros({19})), parameter_of(at::zeros({19}))});
    for (int step = 1; step <= 9; ++step) {
      at::Tensor gradient = at::full({19}, 0.5);
      optimizer->step({step < 4 || step == 7 ? at::Tensor() : gradient, gradient}, 0.125);
    }
    EXPECT_TRUE(optimizer->parameters()[0].value.allclose(at::full({19}, -5 * 0.125), 1e-5, 0));
    EXPECT_TRUE(optimizer->parameters()[1].value.allclose(at::full({19}, -9 * 0.125), 1e-5, 0));
  }
}

TEST(AdamW, TheFirstStepMovesByTheRateAgainstTheGradientsSign) {
  OptimizerOptions options = adamw_options(true);
  options.weight_decay = 0;
  auto optimizer = make_optimizer(options, {parameter_of(at::zeros({2}))});
  optimizer->step({at::tensor({1e-3f, -1e3f})}, 0.125);
  EXPECT_NEAR(optimizer->parameters()[0].value[0].item<double>(), -0.125, 1e-5);
  EXPECT_NEAR(optimizer->parameters()[0].value[1].item<double>(), 0.125, 1e-5);
}

// Of the optimizers of the C++ frontend; one parameter, gradients that depend on the step.
template <typename Torch, typename TorchOptions>
at::Tensor torchs_result(const at::Tensor& value, const at::Tensor& gradients, int64_t steps, double lr) {
  at::Tensor parameter = value.clone().requires_grad_();
  TorchOptions options(lr);
  options.betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1);
  Torch torch({parameter}, options);
  for (int64_t i = 0; i < steps; ++i) {
    parameter.mutable_grad() = gradient_of_step(gradients, i + 1);
    torch.step();
  }
  return parameter.detach();
}

TEST(Adam, AgreesWithTorchsOwn) {
  at::Tensor value = random_values(1003, "value"), gradient = random_values(1003, "gradient");
  at::Tensor coupled =
      torchs_result<torch::optim::Adam, torch::optim::AdamOptions>(value, gradient, 10, 1e-2);
  at::Tensor decoupled =
      torchs_result<torch::optim::AdamW, torch::optim::AdamWOptions>(value, gradient, 10, 1e-2);
  EXPECT_FALSE(coupled.allclose(decoupled, 1e-3, 1e-3));
  for (bool fused : {true, false}) {
    auto adam = make_optimizer(adam_options(fused), {parameter_of(value)});
    auto adamw = make_optimizer(adamw_options(fused), {parameter_of(value)});
    take_steps(*adam, 10, gradient, 1e-2);
    take_steps(*adamw, 10, gradient, 1e-2);
    EXPECT_TRUE(adam->parameters()[0].value.allclose(coupled, 1e-5, 1e-6));
    EXPECT_TRUE(adamw->parameters()[0].value.allclose(decoupled, 1e-5, 1e-6));
  }
}

TEST(Adam, AgreesWithTheDefinitionInDoublePrecision) {
  const double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  for (bool fused : {true, false}) {
    auto optimizer = make_optimizer(adam_options(fused), {parameter_of(at::full({19}, 0.75))});
    double expected = 0.75, mean = 0, square = 0;
    int t = 0;
    for (double gradient : {0.5, -0.25, 0.0, 1.5, 0.125, -2.0}) {
      ++t;
      optimizer->step({at::full({19}, gradient)}, lr);
      double decayed = gradient + weight_decay * expected;
      mean = beta1 * mean + (1 - beta1) * decayed;
      square = beta2 * square + (1 - beta2) * decayed * decayed;
      expected -=
          lr * (mean / (1 - std::pow(beta1, t))) / (std::sqrt(square / (1 - std::pow(beta2, t))) + eps);
      for (int64_t i = 0; i < 19; ++i) {
        EXPECT_NEAR(optimizer->parameters()[0].value[i].item<double>(), expected, 3e-7) << "step " << t;
      }
    }
  }
}

TEST(Adam, IsAdamWWithoutWeightDecay) {
  at::Tensor value = random_values(100, "value"), gradient = random_values(100, "gradient");
  for (bool fused : {true, false}) {
    OptimizerOptions coupled = adam_options(fused), decoupled = adamw_options(fused);
    coupled.weight_decay = decoupled.weight_decay = 0;
    auto adam = make_optimizer(coupled, {parameter_of(value)});
    auto adamw = make_optimizer(decoupled, {parameter_of(value)});
    take_steps(*adam, 3, gradient, 1e-2);
    take_steps(*adamw, 3, gradient, 1e-2);
    EXPECT_TRUE(same_bits(adam->parameters()[0].value, adamw->parameters()[0].value));
  }
}

}  // namespace
}  // namespace fsdp::optim
