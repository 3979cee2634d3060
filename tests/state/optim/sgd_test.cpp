#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "base/util/error.h"
#include "state/optim/element_optimizers.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

OptimizerOptions sgd_options(double momentum, bool fused) {
  OptimizerOptions options;
  options.name = "sgd";
  options.weight_decay = 0.1;
  options.momentum = momentum;
  options.fused = fused;
  return options;
}

TEST(Sgd, KeepsABufferOnlyWithMomentum) {
  EXPECT_TRUE(make_optimizer(sgd_options(0, true), {})->state_names().empty());
  EXPECT_EQ(make_optimizer(sgd_options(0.9, true), {})->state_names(),
            std::vector<std::string>{"momentum_buffer"});
}

TEST(Sgd, AgreesWithTheDefinitionInDoublePrecision) {
  const double lr = 0.1, weight_decay = 0.1;
  const std::vector<double> gradients = {0.5, -0.25, 0.0, 1.5, -2.0};
  for (double momentum : {0.0, 0.9}) {
    for (bool fused : {true, false}) {
      auto optimizer = make_optimizer(sgd_options(momentum, fused), {parameter_of(at::full({19}, 0.75))});
      double expected = 0.75, buffer = 0;
      for (double gradient : gradients) {
        buffer = momentum * buffer + gradient + weight_decay * expected;
        expected -= lr * buffer;
        optimizer->step({at::full({19}, gradient)}, lr);
        for (int64_t i = 0; i < 19; ++i) {
          EXPECT_NEAR(optimizer->parameters()[0].value[i].item<double>(), expected, 3e-7);
        }
      }
    }
  }
}

// Figures of torch.optim.SGD, version 2.11, on the same parameters and gradients.
TEST(Sgd, GivesPyTorchsFigures) {
  for (bool fused : {true, false}) {
    auto optimizer =
        make_optimizer(sgd_options(0.9, fused), {parameter_of(at::tensor({0.5f, -1.f, 2.f, 0.f, -0.25f}))});
    for (int t = 1; t <= 3; ++t) {
      auto s = static_cast<float>(t);
      optimizer->step({at::tensor({0.1f * s, -0.2f, 0.3f / s, 0.f, 1.f})}, 0.01);
    }
    EXPECT_TRUE(optimizer->parameters()[0].value.allclose(
        at::tensor({0.487693191f, -0.983184338f, 1.9768225f, 0.f, -0.304650724f}), 2e-7, 0));
    EXPECT_TRUE(
        optimizer->state("momentum_buffer", 0)
            .allclose(at::tensor({0.695830166f, -0.811860263f, 1.01825047f, 0.f, 2.63854599f}), 2e-7, 0));
  }
}

TEST(Sgd, FusedAgreesWithComposed) {
  at::Tensor value = random_values(1000, "value"), gradient = random_values(1000, "gradient");
  for (double momentum : {0.0, 0.9}) {
    auto fused = make_optimizer(sgd_options(momentum, true), {parameter_of(value)});
    auto composed = make_optimizer(sgd_options(momentum, false), {parameter_of(value)});
    take_steps(*fused, 20, gradient, 1e-2);
    take_steps(*composed, 20, gradient, 1e-2);
    EXPECT_TRUE(fused->parameters()[0].value.allclose(composed->parameters()[0].value, 1e-5, 1e-6));
  }
}

struct Variant {
  double momentum, dampening;
  bool nesterov;
};
constexpr Variant kVariants[] = {
    {0, 0, false}, {0.9, 0, false}, {0.9, 0.3, false}, {0.9, 1, false}, {0.9, 0, true}};

OptimizerOptions sgd_options(const Variant& variant, bool fused) {
  OptimizerOptions options = sgd_options(variant.momentum, fused);
  options.dampening = variant.dampening;
  options.nesterov = variant.nesterov;
  return options;
}

TEST(Sgd, AgreesWithTorchsOwn) {
  at::Tensor value = random_values(1003, "value"), gradient = random_values(1003, "gradient");
  for (const Variant& variant : kVariants) {
    at::Tensor parameter = value.clone().requires_grad_();
    torch::optim::SGD torch({parameter}, torch::optim::SGDOptions(1e-2)
                                             .momentum(variant.momentum)
                                             .dampening(variant.dampening)
                                             .nesterov(variant.nesterov)
                                             .weight_decay(0.1));
    for (int64_t i = 0; i < 10; ++i) {
      parameter.mutable_grad() = gradient_of_step(gradient, i + 1);
      torch.step();
    }
    for (bool fused : {true, false}) {
      auto optimizer = make_optimizer(sgd_options(variant, fused), {parameter_of(value)});
      take_steps(*optimizer, 10, gradient, 1e-2);
      EXPECT_TRUE(optimizer->parameters()[0].value.allclose(parameter.detach(), 1e-5, 1e-6))
          << variant.momentum << " " << variant.dampening << " " << variant.nesterov;
    }
  }
}

// The first gradient fills the buffer undampened, in the parameter's first step only.
TEST(Sgd, ContinuesWithDampeningAsIfUninterrupted) {
  at::Tensor value = random_values(100, "value"), gradient = random_values(100, "gradient");
  const OptimizerOptions options = sgd_options(Variant{0.9, 0.5, false}, true);
  auto through = make_optimizer(options, {parameter_of(value)});
  auto first = make_optimizer(options, {parameter_of(value)});
  take_steps(*through, 3, gradient, 1e-2);
  take_steps(*first, 1, gradient, 1e-2);
  auto second = make_optimizer(options, {first->parameters()[0]});
  second->state("momentum_buffer", 0).copy_(first->state("momentum_buffer", 0));
  second->set_step_count(1);
  take_steps(*second, 2, gradient, 1e-2);
  EXPECT_TRUE(same_bits(second->parameters()[0].value, through->parameters()[0].value));
}

TEST(Sgd, RefusesCombinationsThatTorchRefuses) {
  for (const Variant& variant : {Variant{0, 0, true}, Variant{0.9, 0.1, true}, Variant{0, 0.1, false},
                                 Variant{0.9, 1.1, false}, Variant{0.9, -0.1, false}}) {
    EXPECT_THROW(make_optimizer(sgd_options(variant, true), {}), util::Error);
  }
}

}  // namespace
}  // namespace fsdp::optim
