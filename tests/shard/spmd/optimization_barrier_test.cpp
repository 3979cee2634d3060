#include "shard/spmd/optimization_barrier.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <thread>

#include "model/nn/recompute.h"
#include "support/on_mesh.h"

namespace fsdp::shard::barriers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

/// Computes on a thread of its own, whose autograd nodes are of lower rank than all of this thread's, so that
/// backward takes them last: without a barrier, everything else goes ahead of them.
at::Tensor computed_late(const std::function<at::Tensor()>& compute) {
  at::Tensor result;
  std::thread([&] { result = compute(); }).join();
  return result;
}

/// Notes the name when backward reaches the tensor.
void note(const at::Tensor& tensor, const std::string& name, Names& order) {
  tensor.register_hook([name, &order](const at::Tensor&) { order.push_back(name); });
}

at::Tensor before_the_barrier(Names& order) {
  for (int i = 0; i < 100; ++i) at::ones({1}).requires_grad_().neg();  // nodes are numbered by thread
  const at::Tensor tensor = at::ones({2}).requires_grad_() * 2;
  note(tensor, "before", order);
  return tensor;
}

TEST(OptimizationBarrier, NoGradientPassesItBeforeAllHaveArrived) {
  for (bool has_barrier : {false, true}) {
    Names order;
    const at::Tensor first = before_the_barrier(order), second = at::ones({2}).requires_grad_() * 2;
    std::vector<at::Tensor> tensors = {first, second};
    if (has_barrier) tensors = optimization_barrier(tensors);
    EXPECT_TRUE(at::equal(tensors[0], first));
    const at::Tensor late = computed_late([&] { return tensors[1].sin(); });
    note(late, "late", order);
    (tensors[0] * 3 + late).sum().backward();
    EXPECT_EQ(order, has_barrier ? Names({"late", "before"}) : Names({"before", "late"}));
  }
}

TEST(OptimizationBarrier, PassesTensorsWithoutGradientsOn) {
  const at::Tensor number = at::ones({2}), weight = at::ones({2}).requires_grad_();
  const auto tensors = optimization_barrier({number, at::Tensor(), weight});
  EXPECT_TRUE(tensors[0].is_same(number));
  EXPECT_FALSE(tensors[1].defined());
  (tensors[2] * 3).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({2}, 3)));
  at::NoGradGuard no_grad;
  EXPECT_TRUE(optimization_barrier({weight})[0].is_same(weight));
}

/// Two inputs, two outputs; notes when backward is inside.
struct SplitImpl : torch::nn::Module {
  explicit SplitImpl(Names* order) : order(order) {}
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor inside = a * 2;
    note(inside, "inside", *order);
    const at::Tensor late = computed_late([&] { return b.sin(); });
    note(late, "late input", *order);
    return {inside * 3, late};
  }
  Names* order;
};

TEST(OptimizationBarrier, OfAModuleIsOnItsInputsAndOnItsOutputs) {
  for (bool has_barrier : {false, true}) {
    Names order;
    nn::Hooked<SplitImpl> split(&order);
    if (has_barrier) optimization_barrier(*split);
    const at::Tensor a = before_the_barrier(order), b = at::ones({2}).requires_grad_() * 2;
    const auto [first, second] = split(a, b);
    const at::Tensor late = computed_late([&, &second = second] { return second.sin(); });
    note(late, "late output", order);
    (first + late).sum().backward();
    if (has_barrier) {
      EXPECT_THAT(order, ElementsAre("late output", "inside", "late input", "before"));
    } else {
      EXPECT_THAT(order, ElementsAre("inside", "before", "late output", "late input"));
    }
  }
}

struct Layer final : nn::Stage {
  std::string type_name() const override { return "layer"; }
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override {
    ++calls;
    return at::tanh(linear(x));
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 3));
  int calls = 0;
};

struct Gradients {
  at::Tensor input, weight;
  std::string node;  ///< of the output
};

Gradients gradients_of(Layer& layer) {
  layer.zero_grad();
  layer.calls = 0;
  const at::Tensor input = at::arange(6, at::kFloat).view({2, 3}).requires_grad_();
  const at::Tensor output = layer.forward(input);
  output.square().sum().backward();
  return {input.grad(), layer.linear->weight.grad().clone(), output.grad_fn()->name()};
}

TEST(OptimizationBarrier, RecomputationMayBeAttachedBeforeOrAfter) {
  for (bool recomputes_inside : {false, true}) {
    Layer layer;
    const Gradients expected = gradients_of(layer);
    if (recomputes_inside) optimization_barrier(layer);
    layer.attach(std::make_shared<nn::Recompute>());
    if (!recomputes_inside) optimization_barrier(layer);
    const Gradients gradients = gradients_of(layer);
    EXPECT_EQ(layer.calls, 2);
    EXPECT_TRUE(at::equal(gradients.input, expected.input));
    EXPECT_TRUE(at::equal(gradients.weight, expected.weight));
    EXPECT_EQ(gradients.node, recomputes_inside ? "FsdpBackwardEnd" : "RecomputeBackward");
  }
}

TEST(OptimizationBarrier, NeedsAModuleWhoseCallsAreSeen) {
  torch::nn::Linear linear(2, 2);
  EXPECT_THAT(testing::refusal_of([&] { optimization_barrier(*linear); }).text,
              HasSubstr("expected a module whose calls hooks can see; found a plain torch::nn::LinearImpl"));
}

}  // namespace
}  // namespace fsdp::shard::barriers
