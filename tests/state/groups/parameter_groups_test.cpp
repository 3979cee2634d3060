#include "state/groups/parameter_groups.h"

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

OptimizerOptions with_groups() {
  OptimizerOptions options;
  options.lr = 0.5;
  options.weight_decay = 0.1;
  options.no_decay = {"*.bias"};
  options.groups = {{.pattern = {"*norm*"}, .lr_scale = 2.0, .weight_decay = 0.3},
                    {.pattern = {"head.*", "embed.*"}, .lr = 0.05},
                    {.pattern = {"*"}, .weight_decay = 0.0}};
  return options;
}

TEST(ParameterGroups, TheFirstThatMatchesCounts) {
  const OptimizerOptions options = with_groups();
  EXPECT_EQ(treatment_of(options, "a.norm.weight", {3}).group, 1u);
  EXPECT_EQ(treatment_of(options, "head.norm", {3}).group, 1u);
  EXPECT_EQ(treatment_of(options, "embed.weight", {3, 4}).group, 2u);
  EXPECT_EQ(treatment_of(options, "a.weight", {3, 4}).group, 3u);
  EXPECT_EQ(treatment_of(OptimizerOptions{}, "a.weight", {3, 4}).group, 0u);
}

TEST(ParameterGroups, RatesFollowTheSchedule) {
  const OptimizerOptions options = with_groups();
  // A tenth of the rate, by a schedule.
  EXPECT_DOUBLE_EQ(lr_of(options, {.group = 0}, 0.05), 0.05);
  EXPECT_DOUBLE_EQ(lr_of(options, {.group = 1}, 0.05), 0.1);
  EXPECT_DOUBLE_EQ(lr_of(options, {.group = 2}, 0.05), 0.005);
  EXPECT_DOUBLE_EQ(lr_of(options, {.group = 3}, 0.05), 0.05);
}

TEST(ParameterGroups, ParametersWithoutDecayHaveNoneInAnyGroup) {
  const OptimizerOptions options = with_groups();
  EXPECT_EQ(weight_decay_of(options, treatment_of(options, "a.norm.weight", {3})), 0.3);
  EXPECT_EQ(weight_decay_of(options, treatment_of(options, "a.norm.bias", {3})), 0);
  EXPECT_EQ(weight_decay_of(options, treatment_of(options, "head.weight", {3, 4})), 0.1);
  EXPECT_EQ(weight_decay_of(options, treatment_of(options, "a.weight", {3, 4})), 0);
}

// Each group is updated as in a run with the group's options.
TEST(ParameterGroups, AreUpdatedAsIfTheirOptionsWereTheOptimizers) {
  for (const char* name : {"adamw", "adam", "sgd", "lion"}) {
    OptimizerOptions options = with_groups(), plain;
    options.name = plain.name = name;
    at::Tensor value = random_values(90, "value"), gradient = random_values(90, "gradient");
    auto grouped = make_optimizer(
        options,
        {{"p", value.clone(), {{0, 20, {.group = 1}}, {20, 50, {.group = 2}}, {50, 90, {.group = 3}}}}});
    take_steps(*grouped, 3, gradient, 0.01);
    auto expect_like = [&](int64_t begin, int64_t end, double lr, double weight_decay) {
      plain.weight_decay = weight_decay;
      auto alone = make_optimizer(plain, {parameter_of(value.slice(0, begin, end))});
      take_steps(*alone, 3, gradient.slice(0, begin, end), lr);
      EXPECT_TRUE(
          same_bits(grouped->parameters()[0].value.slice(0, begin, end), alone->parameters()[0].value))
          << name << " " << begin;
    };
    expect_like(0, 20, 0.02, 0.3);
    expect_like(20, 50, 0.01 * (0.05 / 0.5), 0.1);
    expect_like(50, 90, 0.01, 0);
  }
}

TEST(ParameterGroups, WithoutMeaningAreRefused) {
  auto refused = [](ParameterGroupOptions group, double lr = 1) {
    OptimizerOptions options;
    options.lr = lr;
    options.groups = {std::move(group)};
    EXPECT_THROW(make_optimizer(options, {}), util::Error);
  };
  refused({.pattern = {"*"}, .lr = -1.0});
  refused({.pattern = {"*"}, .lr_scale = -1.0});
  refused({.pattern = {"*"}, .weight_decay = -1.0});
  refused({.pattern = {"*"}, .lr = 1.0, .lr_scale = 1.0});
  refused({.pattern = {"*"}, .lr = 1.0}, 0);
}

OptimizerOptions named(const char* name) {
  OptimizerOptions options;
  options.name = name;
  return options;
}

// torch.optim's defaults, except for adamw, for which large models use more.
TEST(WeightDecay, OfNoNumberIsThatOfTheOptimizer) {
  EXPECT_EQ(weight_decay_of(named("adamw")), 0.1);
  EXPECT_EQ(weight_decay_of(named("muon")), 0.1);
  for (const char* name : {"sgd", "adam", "lion"}) {
    OptimizerOptions options = named(name);
    EXPECT_EQ(weight_decay_of(options), 0) << name;
    EXPECT_EQ(weight_decay_of(options, treatment_of(options, "a.weight", {3, 4})), 0) << name;
    options.weight_decay = 0.3;
    EXPECT_EQ(weight_decay_of(options), 0.3);
  }
}

TEST(WeightDecay, OfNoNumberLeavesWeightsWithoutGradientAloneUnderSgd) {
  auto optimizer = make_optimizer(named("sgd"), {parameter_of(at::full({5}, 2.0))});
  optimizer->step({at::zeros({5})}, 0.1);
  EXPECT_TRUE(optimizer->parameters()[0].value.equal(at::full({5}, 2.0)));
}

}  // namespace
}  // namespace fsdp::optim
