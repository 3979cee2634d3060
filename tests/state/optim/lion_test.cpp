#include <gtest/gtest.h>

#include "state/optim/element_optimizers.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

OptimizerOptions lion_options(bool fused) {
  OptimizerOptions options;
  options.name = "lion";
  options.weight_decay = 0.1;
  options.betas = {0.9, 0.99};
  options.fused = fused;
  return options;
}

TEST(Lion, KeepsOneAverage) {
  EXPECT_EQ(make_optimizer(lion_options(true), {})->state_names(), std::vector<std::string>{"exp_avg"});
}

TEST(Lion, AgreesWithTheDefinitionInDoublePrecision) {
  const double lr = 1e-2, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1;
  for (bool fused : {true, false}) {
    auto optimizer = make_optimizer(lion_options(fused), {parameter_of(at::full({19}, 0.75))});
    double expected = 0.75, average = 0;
    // The sign changes late, because of the average.
    for (double gradient : {0.5, -0.001, 1.5, -0.125, -2.0, -2.0}) {
      double direction = beta1 * average + (1 - beta1) * gradient;
      expected = expected * (1 - lr * weight_decay) - lr * (direction > 0 ? 1 : -1);
      average = beta2 * average + (1 - beta2) * gradient;
      optimizer->step({at::full({19}, gradient)}, lr);
      for (int64_t i = 0; i < 19; ++i) {
        EXPECT_NEAR(optimizer->parameters()[0].value[i].item<double>(), expected, 3e-7);
        EXPECT_NEAR(optimizer->state("exp_avg", 0)[i].item<double>(), average, 3e-7);
      }
    }
  }
}

TEST(Lion, FusedAgreesWithComposed) {
  at::Tensor value = random_values(1000, "value"), gradient = random_values(1000, "gradient");
  auto fused = make_optimizer(lion_options(true), {parameter_of(value)});
  auto composed = make_optimizer(lion_options(false), {parameter_of(value)});
  take_steps(*fused, 20, gradient, 1e-2);
  take_steps(*composed, 20, gradient, 1e-2);
  EXPECT_TRUE(fused->parameters()[0].value.allclose(composed->parameters()[0].value, 1e-5, 1e-6));
  EXPECT_TRUE(fused->state("exp_avg", 0).allclose(composed->state("exp_avg", 0), 1e-5, 1e-7));
}

TEST(Lion, LeavesElementsWithoutDirectionWhereTheyAre) {
  for (bool fused : {true, false}) {
    OptimizerOptions options = lion_options(fused);
    options.weight_decay = 0;
    at::Tensor value = random_values(20, "value");
    auto optimizer = make_optimizer(options, {parameter_of(value)});
    optimizer->step({at::zeros({20})}, 1e-2);
    EXPECT_TRUE(same_bits(optimizer->parameters()[0].value, value));
  }
}

}  // namespace
}  // namespace fsdp::optim
