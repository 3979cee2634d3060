#include "state/optim/adaptive_rates.h"

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

using Floats = std::vector<float>;

struct TorchFigures {
  const char* name;
  double lr, weight_decay;
  Floats value;
  std::vector<Floats> states;
};

// Figures of torch.optim 2.11 (with foreach=False) on the same parameters and gradients after ten steps:
//
//   p = torch.tensor([0.5, -1, 2, 0, -0.25], requires_grad=True)
//   o = torch.optim.Adagrad([p], lr=0.01, weight_decay=wd)
//   # or Adadelta with lr=1, Adamax with lr=0.002 and betas=(0.9, 0.95)
//   for t in range(1, 11): p.grad = torch.tensor([0.1 * t, -0.2, 0.3 / t, 0, 1]); o.step()
const TorchFigures kFigures[] = {
    {"adagrad",
     0.01,
     0,
     {0.430758417f, -0.949790061f, 1.97368574f, 0.0f, -0.300209969f},
     {{3.85000014f, 0.400000006f, 0.139479101f, 0.0f, 10.0f}}},
    {"adagrad",
     0.01,
     0.1,
     {0.432703614f, -0.949952602f, 1.95936882f, 0.0f, -0.30016017f},
     {{4.37257576f, 0.883488178f, 0.879214346f, 0.0f, 9.45228767f}}},
    {"adadelta",
     1,
     0,
     {0.431954712f, -0.966252983f, 1.98771679f, 0.0f, -0.283751249f},
     {{0.313759863f, 0.0260528624f, 0.00604697317f, 0.0f, 0.65132153f},
      {3.9499977e-05f, 7.5571761e-06f, 9.95549271e-07f, 0.0f, 7.55909514e-06f}}},
    {"adadelta",
     1,
     0.1,
     {0.436955631f, -0.966366708f, 1.97667062f, 0.0f, -0.283715576f},
     {{0.353653252f, 0.057928741f, 0.0500144288f, 0.0f, 0.6169101f},
      {3.32779382e-05f, 7.4948025e-06f, 3.37370921e-06f, 0.0f, 7.53951645e-06f}}},
    {"adamax",
     0.002,
     0,
     {0.486166269f, -0.980000257f, 1.98880434f, 0.0f, -0.270000041f},
     {{0.413810581f, -0.130264312f, 0.0458336286f, 0.0f, 0.65132159f},
      {1.0f, 0.200000018f, 0.189074799f, 9.99999994e-09f, 1.0f}}},
    {"adamax",
     0.002,
     0.1,
     {0.485617578f, -0.97997421f, 1.98312116f, 0.0f, -0.270007938f},
     {{0.445845783f, -0.194698527f, 0.175499916f, 0.0f, 0.634341002f},
      {1.04869235f, 0.298197925f, 0.315124661f, 9.99999994e-09f, 0.973199368f}}}};

TEST(AdaptiveRates, GivePyTorchsFigures) {
  for (const TorchFigures& expected : kFigures) {
    for (bool fused : {true, false}) {
      OptimizerOptions options;
      options.name = expected.name;
      options.weight_decay = expected.weight_decay;
      options.fused = fused;
      auto optimizer = make_optimizer(options, {parameter_of(at::tensor({0.5f, -1.f, 2.f, 0.f, -0.25f}))});
      for (int t = 1; t <= 10; ++t) {
        const auto s = static_cast<float>(t);
        optimizer->step({at::tensor({0.1f * s, -0.2f, 0.3f / s, 0.f, 1.f})}, expected.lr);
      }
      const std::string what = concat(expected.name, " ", expected.weight_decay, fused ? " fused" : "");
      EXPECT_TRUE(optimizer->parameters()[0].value.allclose(at::tensor(expected.value), 0, 3e-7)) << what;
      ASSERT_EQ(optimizer->states().size(), expected.states.size()) << what;
      for (size_t s = 0; s < expected.states.size(); ++s) {
        EXPECT_TRUE(optimizer->state(optimizer->state_names()[s], 0)
                        .allclose(at::tensor(expected.states[s]), 2e-6, 1e-12))
            << what << " " << optimizer->state_names()[s];
      }
    }
  }
}

TEST(AdaptiveRates, FusedAgreesWithComposed) {
  at::Tensor value = random_values(1000, "value"), gradient = random_values(1000, "gradient");
  for (const char* name : {"adagrad", "adadelta", "adamax"}) {
    OptimizerOptions options;
    options.name = name;
    options.weight_decay = 0.1;
    auto fused = make_optimizer(options, {parameter_of(value)});
    options.fused = false;
    auto composed = make_optimizer(options, {parameter_of(value)});
    take_steps(*fused, 20, gradient, 1e-2);
    take_steps(*composed, 20, gradient, 1e-2);
    EXPECT_TRUE(fused->parameters()[0].value.allclose(composed->parameters()[0].value, 1e-5, 1e-6)) << name;
  }
}

TEST(AdaptiveRates, HavePyTorchsStatesAndEps) {
  const auto made = [](const char* name) {
    OptimizerOptions options;
    options.name = name;
    return make_optimizer(options, {});
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(made("adagrad")->state_names(), Names{"sum"});
  EXPECT_EQ(made("adadelta")->state_names(), (Names{"square_avg", "acc_delta"}));
  EXPECT_EQ(made("adamax")->state_names(), (Names{"exp_avg", "exp_inf"}));
  EXPECT_EQ(eps_of(made("adagrad")->options()), 1e-10);
  EXPECT_EQ(eps_of(made("adadelta")->options()), 1e-6);
  EXPECT_EQ(eps_of(made("adamax")->options()), 1e-8);
}

}  // namespace
}  // namespace fsdp::optim
