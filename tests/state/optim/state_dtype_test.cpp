// States that are kept in bf16: updates are computed in fp32, and the states rounded stochastically.

#include <gtest/gtest.h>

#include <cmath>

#include "base/util/error.h"
#include "model/kernels/stochastic_rounding.h"
#include "state/optim/shards.h"
#include "support/counting_allocator.h"

namespace fsdp::optim {
namespace {

struct StateCase {
  std::string name;
  bool fused = true;
  at::ScalarType values = at::kFloat;
};

constexpr int64_t kNumel = 37 * 53 + 53;

/// Has a tensor of a matrix and one of a vector, without muon's matrices.
FlatParameter parameter_for(const OptimizerOptions& options, at::ScalarType type = at::kFloat) {
  FlatParameter parameter =
      parameter_of_tensors(options, {{"layers.0.weight", random_values(37 * 53, "matrix").view({37, 53})},
                                     {"layers.0.norm", random_values(53, "vector")}});
  parameter.value = parameter.value.to(type);
  return parameter;
}

class StatesInBFloat16 : public ::testing::TestWithParam<StateCase> {
 protected:
  static OptimizerOptions options(StateType type = StateType::kBFloat16) {
    OptimizerOptions options;
    options.name = GetParam().name;
    options.momentum = options.name == "sgd" ? 0.9 : 0;
    options.fused = GetParam().fused;
    options.weight_decay = 0.1;
    options.state_dtype = type;
    options.rounding_seed = 17;
    options.no_decay = {"*norm*"};
    return options;
  }
  static std::unique_ptr<Optimizer> make(const OptimizerOptions& options) {
    return make_optimizer(options, {parameter_for(options, GetParam().values)});
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, StatesInBFloat16, ::testing::ValuesIn([] {
      std::vector<StateCase> cases;
      for (const char* name : {"adamw", "adam", "sgd", "lion", "adamax", "adagrad", "adadelta"}) {
        cases.push_back({name});
        cases.push_back({name, false});
      }
      cases.push_back({"adamw", true, at::kBFloat16});
      cases.push_back({"lion", true, at::kBFloat16});
      return cases;
    }()),
    [](const auto& info) {
      return info.param.name + (info.param.fused ? "" : "_composed") +
             (info.param.values == at::kFloat ? "" : "_of_low_values");
    });

TEST_P(StatesInBFloat16, AreThoseOfFp32RoundedToANeighbour) {
  auto wide = make(options(StateType::kFloat32)), stored = make(options());
  const at::Tensor gradient = random_values(kNumel, "gradient");
  wide->step({gradient.clone()}, 1e-2);
  stored->step({gradient.clone()}, 1e-2);
  // The states are zero at first, so that the first update is the same.
  EXPECT_TRUE(at::equal(stored->parameters()[0].value, wide->parameters()[0].value));
  for (const std::string& name : wide->state_names()) {
    const at::Tensor state = stored->state(name, 0), exact = wide->state(name, 0);
    ASSERT_EQ(state.scalar_type(), at::kBFloat16) << name;
    const at::Tensor step = at::exp2(at::floor(at::log2(exact.abs().clamp_min(1e-30))) - 7);
    const at::Tensor off = state.to(at::kFloat).sub(exact).div(step);
    EXPECT_TRUE(off.abs().lt(1.001).all().item<bool>()) << name;
    EXPECT_GT(off.abs().gt(0.5).to(at::kFloat).mean().item<float>(), 0.1) << name << " is not the nearest";
    EXPECT_LT(std::abs(off.mean().item<double>()), 0.05) << name << " is rounded up as often as down";
  }
}

TEST_P(StatesInBFloat16, ContinueWithTheSameBits) {
  const at::Tensor gradients = random_values(kNumel, "gradient");
  auto whole = make(options()), resumed = make(options());
  take_steps(*whole, 3, gradients, 1e-2);
  resumed->parameters()[0].value.copy_(whole->parameters()[0].value);
  for (const std::string& name : whole->state_names()) resumed->state(name, 0).copy_(whole->state(name, 0));
  resumed->set_step_count(3);
  take_steps(*whole, 2, gradients, 1e-2);
  take_steps(*resumed, 2, gradients, 1e-2);
  EXPECT_TRUE(at::equal(resumed->parameters()[0].value, whole->parameters()[0].value));
  for (const std::string& name : whole->state_names()) {
    EXPECT_TRUE(at::equal(resumed->state(name, 0), whole->state(name, 0))) << name;
  }
}

TEST_P(StatesInBFloat16, TrainAsStatesInFp32Do) {
  auto wide = make(options(StateType::kFloat32)), stored = make(options());
  const at::Tensor gradients = random_values(kNumel, "gradient");
  const at::Tensor before = wide->parameters()[0].value.to(at::kFloat).clone();
  take_steps(*wide, 50, gradients, 1e-3);
  take_steps(*stored, 50, gradients, 1e-3);
  const at::Tensor moved = wide->parameters()[0].value.to(at::kFloat) - before;
  const at::Tensor off = stored->parameters()[0].value.to(at::kFloat) - wide->parameters()[0].value;
  EXPECT_GT(off.abs().max().item<float>(), 0);
  const bool low = GetParam().values != at::kFloat;
  EXPECT_LT(off.norm().item<float>(), (low ? 0.2F : 0.03F) * moved.norm().item<float>());
}

TEST_P(StatesInBFloat16, TheSeedDecidesTheRounding) {
  const auto trained = [&](uint64_t seed) {
    OptimizerOptions seeded = options();
    seeded.rounding_seed = seed;
    auto optimizer = make(seeded);
    take_steps(*optimizer, 1, random_values(kNumel, "gradient"), 1e-2);
    return optimizer->state(optimizer->state_names()[0], 0).clone();
  };
  EXPECT_TRUE(at::equal(trained(1), trained(1)));
  EXPECT_FALSE(at::equal(trained(1), trained(2)));
}

// In one pass, with the bits of fp32 states that are rounded afterwards.
TEST(StatesOfAdamW, HaveTheBitsOfARoundingAfterTheStep) {
  for (at::ScalarType gradient_type : {at::kFloat, at::kBFloat16}) {
    OptimizerOptions options;
    options.rounding_seed = 5;
    auto wide = make_optimizer(options, {parameter_for(options)});
    options.state_dtype = StateType::kBFloat16;
    auto stored = make_optimizer(options, {parameter_for(options)});
    const at::Tensor gradient = random_values(kNumel, "gradient").to(gradient_type);
    for (int step = 1; step <= 3; ++step) {
      wide->step({gradient.clone()}, 1e-2);
      stored->step({gradient.clone()}, 1e-2);
      EXPECT_TRUE(same_bits(stored->parameters()[0].value, wide->parameters()[0].value)) << step;
      for (const char* name : {"exp_avg", "exp_avg_sq"}) {
        const at::Tensor exact = wide->state(name, 0), state = stored->state(name, 0);
        const at::Tensor low = at::minimum(state.to(at::kFloat), exact),
                         high = at::maximum(state.to(at::kFloat), exact);
        EXPECT_TRUE((high.view(at::kInt) - low.view(at::kInt)).abs().lt(1 << 16).all().item<bool>()) << name;
        exact.copy_(state);  // goes on from the rounded state
      }
    }
  }
}

// A step of 1 - beta2 = 0.001 of the distance to the mean of squares is a fraction of the distance between
// neighbours in bf16: rounded to nearest, the average would stand still.
TEST(StatesOfAdamW, FollowTheSquaresWhereRoundingToNearestWouldStall) {
  OptimizerOptions options;
  options.betas = {0.9, 0.999};
  options.weight_decay = 0;
  options.state_dtype = StateType::kBFloat16;
  constexpr int64_t n = 4096;
  auto optimizer = make_optimizer(options, {parameter_of_tensors(options, {{"w", at::ones({n})}})});
  const at::Tensor squares = optimizer->state("exp_avg_sq", 0);
  squares.fill_(1);
  at::Tensor nearest = squares.clone();
  optimizer->set_step_count(1000);
  const at::Tensor gradient = at::full({n}, std::sqrt(1.5));
  for (int step = 0; step < 1000; ++step) {
    optimizer->step({gradient.clone()}, 1e-5);
    nearest = nearest.to(at::kFloat).mul_(0.999).add_(1.5 * 0.001).to(at::kBFloat16);
  }
  const double expected = 1.5 - 0.5 * std::pow(0.999, 1000);
  EXPECT_EQ(nearest.to(at::kFloat).max().item<float>(), 1.0F);
  EXPECT_NEAR(squares.to(at::kDouble).mean().item<double>(), expected, 0.005);
}

TEST(StatesOfAdamW, HaveTheBitsOfAnyCut) {
  OptimizerOptions options;
  options.state_dtype = StateType::kBFloat16;
  const int64_t rows = 64, columns = 1003;
  const at::Tensor values = random_values(rows * columns, "value").view({rows, columns}),
                   gradient = random_values(rows * columns, "gradient").view({rows, columns});
  const auto stepped = [&](int64_t begin, int64_t end) {
    FlatParameter parameter{"unit", values.slice(1, begin, end).flatten().clone(), {}};
    parameter.ranges.push_back({0, parameter.value.numel()});
    parameter.tensors.push_back({"w", {rows, columns}, {}, {{begin, end, rows}}, 0});
    auto optimizer = make_optimizer(options, {parameter});
    take_steps(*optimizer, 3, gradient.slice(1, begin, end).flatten(), 1e-2);
    return optimizer->state("exp_avg_sq", 0).view({rows, end - begin}).clone();
  };
  const at::Tensor whole = stepped(0, columns);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 600}, {600, columns}}) {
    EXPECT_TRUE(at::equal(stepped(begin, end), whole.slice(1, begin, end))) << begin;
  }
}

TEST(StatesOfAdamW, AreUpdatedWithoutCopiesInFp32) {
  OptimizerOptions options;
  options.state_dtype = StateType::kBFloat16;
  const int64_t n = 3 * kPiece + 77;
  const at::Tensor gradient = random_values(n, "gradient");
  for (const auto& [name, most] : {std::pair<std::string, int64_t>{"adamw", 4096}, {"adamax", 64 << 20}}) {
    options.name = name;
    auto optimizer =
        make_optimizer(options, {parameter_of_tensors(options, {{"w", random_values(n, "value")}})});
    testing::CountingAllocator::Scope counter;
    optimizer->step({gradient}, 1e-2);
    EXPECT_LT(counter.peak_bytes(), most) << name;
  }
}

TEST(RoundedStates, AverageOfWeightsStaysInFp32) {
  OptimizerOptions options;
  options.ema_decay = 0.5;
  options.state_dtype = StateType::kBFloat16;
  auto optimizer = make_optimizer(options, {parameter_for(options)});
  EXPECT_EQ(optimizer->state(kEmaState, 0).scalar_type(), at::kFloat);
  EXPECT_EQ(optimizer->state("exp_avg", 0).scalar_type(), at::kBFloat16);
}

TEST(RoundedStates, AreRefusedWhereSumsOverTensorsAreTaken) {
  for (const char* name : {"lamb", "adafactor"}) {
    OptimizerOptions options;
    options.name = name;
    options.state_dtype = StateType::kBFloat16;
    WholeTensors whole;
    try {
      make_optimizer(options, {parameter_for(options)}, &whole);
      FAIL() << name;
    } catch (const util::Error& error) {
      EXPECT_NE(std::string(error.what()).find("optimizer.state_dtype"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace fsdp::optim
