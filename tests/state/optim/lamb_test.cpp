#include "state/optim/lamb.h"

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

OptimizerOptions lamb_options() {
  OptimizerOptions options;
  options.name = "lamb";
  options.no_decay = {"bias"};
  return options;
}

// Figures of timm 1.0.31's Lamb, which follows Apex's FusedLAMB, after ten steps:
//
//   W = torch.tensor([[0.5, -1, 2], [0, -0.25, 0.75]], requires_grad=True)
//   B = torch.tensor([0.1, -0.3], requires_grad=True)
//   o = Lamb([{"params": [W], "weight_decay": 0.01}, {"params": [B], "weight_decay": 0}],
//            lr=0.01, betas=(0.9, 0.95), eps=1e-6, max_grad_norm=None)
//   in step t: the gradients [[0.3, -0.2, 0.1], [0.5, -0.4, 1]] / t - 0.01 * t and [0.2, -0.1] / t - 0.01 * t
TEST(Lamb, GivesTheFiguresOfApex) {
  auto optimizer = over_tensors(
      lamb_options(),
      {{"weight", at::tensor({0.5f, -1.f, 2.f, 0.f, -0.25f, 0.75f})}, {"bias", at::tensor({0.1f, -0.3f})}});
  take_steps(*optimizer, 10, at::tensor({0.3f, -0.2f, 0.1f, 0.5f, -0.4f, 1.f, 0.2f, -0.1f}), 0.01);
  EXPECT_TRUE(optimizer->parameters()[0].value.allclose(
      at::tensor({0.429384559f, -0.878154337f, 1.9903214f, -0.0842383355f, -0.135636717f, 0.655461371f,
                  0.0548763238f, -0.202157304f}),
      0, 3e-7))
      << optimizer->parameters()[0].value;
  EXPECT_TRUE(optimizer->state("exp_avg_sq", 0)
                  .allclose(at::tensor({0.00394546473f, 0.00539173419f, 0.00144433905f, 0.0105527705f,
                                        0.0131560536f, 0.045035556f, 0.00218162988f, 0.00304939109f}),
                            2e-6, 0));
}

TEST(Lamb, IsAdamForTensorsWithoutWeightDecayOrNorm) {
  const at::Tensor gradient = random_values(40, "gradient");
  OptimizerOptions adam;
  adam.name = "adam";
  adam.eps = eps_of(lamb_options());
  for (const auto& [name, value] : {std::pair<std::string, at::Tensor>{"bias", random_values(40, "value")},
                                    {"weight", at::zeros({40})}}) {
    auto lamb = over_tensors(lamb_options(), {{name, value}});
    auto expected = make_optimizer(adam, {parameter_of(value)});
    take_steps(*lamb, 1, gradient, 1e-2);  // afterwards the weight has a norm
    take_steps(*expected, 1, gradient, 1e-2);
    EXPECT_TRUE(lamb->parameters()[0].value.allclose(expected->parameters()[0].value, 1e-5, 1e-7)) << name;
  }
}

TEST(Lamb, GoesOnFromASavedStateAsIfNeverStopped) {
  const at::Tensor value = random_values(40, "value"), gradient = random_values(40, "gradient");
  auto through = over_tensors(lamb_options(), {{"weight", value}}),
       first = over_tensors(lamb_options(), {{"weight", value}});
  take_steps(*through, 5, gradient, 1e-2);
  take_steps(*first, 2, gradient, 1e-2);
  auto second = over_tensors(lamb_options(), {{"weight", first->parameters()[0].value}});
  for (const std::string& name : first->state_names()) second->state(name, 0).copy_(first->state(name, 0));
  second->set_step_count(2);
  take_steps(*second, 3, gradient, 1e-2);
  EXPECT_TRUE(same_bits(second->parameters()[0].value, through->parameters()[0].value));
}

TEST(Lamb, LeavesPaddingAndGradientsAlone) {
  FlatParameter parameter = parameter_of_tensors(lamb_options(), {{"weight", random_values(40, "value")}});
  parameter.value = at::cat({parameter.value, at::full({3}, std::numeric_limits<float>::quiet_NaN())});
  WholeTensors whole;
  auto optimizer = make_optimizer(lamb_options(), {parameter}, &whole);
  const at::Tensor gradient = random_values(43, "gradient"), before = gradient.clone();
  optimizer->step({gradient}, 1e-2);
  EXPECT_TRUE(same_bits(gradient, before));
  EXPECT_TRUE(optimizer->parameters()[0].value.slice(0, 40, 43).isnan().all().item<bool>());
  EXPECT_TRUE(optimizer->parameters()[0].value.slice(0, 0, 40).isfinite().all().item<bool>());
}

TEST(Lamb, NeedsAWayToSumsOverWholeTensors) {
  EXPECT_THROW(make_optimizer(lamb_options(), {}), util::Error);
  EXPECT_FALSE(over_tensors(lamb_options(), {})->updates_alone());
}

}  // namespace
}  // namespace fsdp::optim
