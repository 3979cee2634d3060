// Weights that are kept in 16 bits: every optimizer updates them in fp32 and rounds them stochastically.

#include <gtest/gtest.h>

#include <cmath>

#include "base/util/error.h"
#include "state/optim/shards.h"
#include "support/counting_allocator.h"

namespace fsdp::optim {
namespace {

struct SixteenBitsCase {
  std::string name;
  at::ScalarType type = at::kBFloat16;
  bool fused = true;
};

/// Has a tensor of a matrix and one of a vector, without muon's matrices.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(at::ScalarType type) {
  return {{"layers.0.weight", random_values(37 * 53, "matrix").view({37, 53}).to(type)},
          {"layers.0.norm", random_values(53, "vector").to(type)}};
}

/// The same with another type: at::cat() of parameter_of_tensors() would promote it.
FlatParameter parameter_in(at::ScalarType type, const OptimizerOptions& options,
                           const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  FlatParameter parameter = parameter_of_tensors(options, tensors);
  parameter.value = parameter.value.to(type);
  return parameter;
}

class InSixteenBits : public ::testing::TestWithParam<SixteenBitsCase> {
 protected:
  static at::ScalarType type() { return GetParam().type; }
  OptimizerOptions options() const {
    OptimizerOptions options;
    options.name = GetParam().name;
    options.momentum = options.name == "sgd" ? 0.9 : 0;
    options.fused = GetParam().fused;
    options.weight_decay = 0.1;
    options.rounding_seed = 17;
    options.no_decay = {"*norm*"};
    return options;
  }
  std::unique_ptr<Optimizer> make(at::ScalarType type) const {
    static WholeTensors whole;
    // Values that both types hold.
    return make_optimizer(options(), {parameter_in(type, options(), tensors_of(GetParam().type))}, &whole);
  }
  static constexpr int64_t kNumel = 37 * 53 + 53;
};

INSTANTIATE_TEST_SUITE_P(All, InSixteenBits, ::testing::ValuesIn([] {
                           std::vector<SixteenBitsCase> cases;
                           for (const char* name : {"adamw", "adam", "sgd", "lion", "adamax", "adagrad",
                                                    "adadelta", "lamb", "adafactor"}) {
                             for (at::ScalarType type : {at::kBFloat16, at::kHalf})
                               cases.push_back({name, type});
                             cases.push_back({name, at::kBFloat16, false});
                           }
                           return cases;
                         }()),
                         [](const auto& info) {
                           return info.param.name + "_" + c10::toString(info.param.type) +
                                  (info.param.fused ? "" : "_composed");
                         });

TEST_P(InSixteenBits, AStepIsThatOfFp32RoundedToANeighbour) {
  auto wide = make(at::kFloat), stored = make(type());
  const at::Tensor gradient = random_values(kNumel, "gradient");
  wide->step({gradient.clone()}, 1e-2);
  stored->step({gradient.clone()}, 1e-2);
  const at::Tensor &exact = wide->parameters()[0].value, &value = stored->parameters()[0].value;
  ASSERT_EQ(value.scalar_type(), type());
  const bool half = type() == at::kHalf;
  const at::Tensor magnitude = exact.abs().clamp_min(half ? std::exp2(-14) : std::exp2(-126));
  const at::Tensor step = at::exp2(at::floor(at::log2(magnitude)) - (half ? 10 : 7));
  const at::Tensor off = value.to(at::kFloat).sub(exact);
  // The sums of lamb and adafactor may differ in their last bits.
  EXPECT_TRUE(off.abs().lt(step * 1.001).all().item<bool>());
  EXPECT_LT(std::abs(off.div(step).mean().item<double>()), 0.05) << "rounds up as often as down";
  for (const std::string& name : wide->state_names()) {
    const at::Tensor state = stored->state(name, 0);
    EXPECT_EQ(state.scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(at::allclose(state, wide->state(name, 0), 1e-6, 1e-9)) << name;
  }
}

TEST_P(InSixteenBits, ContinuesWithTheSameBits) {
  const at::Tensor gradients = random_values(kNumel, "gradient");
  auto whole = make(type()), resumed = make(type());
  take_steps(*whole, 3, gradients, 1e-2);
  resumed->parameters()[0].value.copy_(whole->parameters()[0].value);
  for (const std::string& name : whole->state_names()) resumed->state(name, 0).copy_(whole->state(name, 0));
  resumed->set_step_count(3);
  take_steps(*whole, 2, gradients, 1e-2);
  take_steps(*resumed, 2, gradients, 1e-2);
  EXPECT_TRUE(at::equal(resumed->parameters()[0].value, whole->parameters()[0].value));
}

TEST_P(InSixteenBits, TheSeedDecidesTheRounding) {
  const at::Tensor gradients = random_values(kNumel, "gradient");
  const auto trained = [&](uint64_t seed) {
    static WholeTensors whole;
    OptimizerOptions seeded = options();
    seeded.rounding_seed = seed;
    auto optimizer = make_optimizer(seeded, {parameter_in(type(), seeded, tensors_of(type()))}, &whole);
    take_steps(*optimizer, 1, gradients, 1e-2);
    return optimizer->parameters()[0].value;
  };
  EXPECT_TRUE(at::equal(trained(1), trained(1)));
  EXPECT_FALSE(at::equal(trained(1), trained(2)));
}

TEST(SixteenBits, KeepSmallChangesOnAverage) {
  OptimizerOptions options;
  options.name = "sgd";
  options.weight_decay = 0;
  const int64_t n = 10'000;
  const FlatParameter ones = parameter_of_tensors(options, {{"w", at::ones({n})}});
  FlatParameter stored = ones;
  stored.value = at::ones({n}, at::kBFloat16);
  auto optimizer = make_optimizer(options, {stored});
  // A step of 2^-12 is a 32nd of the distance between neighbours below 1: to nearest, nothing would change.
  for (int step = 0; step < 128; ++step) optimizer->step({at::ones({n})}, std::exp2(-12));
  const double mean = optimizer->parameters()[0].value.to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(mean, 1 - 128 * std::exp2(-12), 1e-3);
}

TEST(SixteenBits, AreAveragedInFp32) {
  OptimizerOptions options;
  options.ema_decay = 0.75;
  options.name = "sgd";
  const auto tensors = tensors_of(at::kBFloat16);
  auto optimizer = make_optimizer(options, {parameter_in(at::kBFloat16, options, tensors)});
  at::Tensor expected;
  for (int step = 1; step <= 3; ++step) {
    take_steps(*optimizer, 1, random_values(37 * 53 + 53, "gradient"), 1e-2);
    const at::Tensor now = optimizer->parameters()[0].value.to(at::kDouble);
    expected = step == 1 ? now : expected * 0.75 + now * 0.25;
  }
  EXPECT_TRUE(at::allclose(optimizer->state(kEmaState, 0).to(at::kDouble), expected, 1e-6, 1e-9));
}

TEST(SixteenBits, AreUpdatedPieceByPieceWithTheBitsOfAnyCut) {
  OptimizerOptions options;
  const int64_t n = 2 * kPiece + 12'345;
  const at::Tensor values = random_values(n, "value").to(at::kBFloat16),
                   gradient = random_values(n, "gradient");
  const auto parameter = [&](int64_t begin, int64_t end) {
    FlatParameter parameter{"unit", values.slice(0, begin, end).clone(), {{0, end - begin}}};
    parameter.tensors.push_back({"w", {n}, {}, {{begin, end}}, 0});
    return parameter;
  };
  auto whole = make_optimizer(options, {parameter(0, n)});
  {
    testing::CountingAllocator::Scope counter;
    whole->step({gradient}, 1e-2);
    EXPECT_LT(counter.peak_bytes(), 4 * kPiece + 4096) << "one piece in fp32";
  }
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1'000'003}, {1'000'003, n}}) {
    auto part = make_optimizer(options, {parameter(begin, end)});
    part->step({gradient.slice(0, begin, end).clone()}, 1e-2);
    EXPECT_TRUE(at::equal(part->parameters()[0].value, whole->parameters()[0].value.slice(0, begin, end)));
  }
}

TEST(SixteenBits, OfNoTensorCannotBeRounded) {
  FlatParameter parameter{"unit", at::ones({40}, at::kBFloat16), {{0, 40}}};
  auto optimizer = make_optimizer(OptimizerOptions(), {parameter});
  try {
    optimizer->step({at::ones({40})}, 1e-2);
    FAIL() << "rounded by no name";
  } catch (const util::Error& error) {
    EXPECT_NE(std::string(error.what()).find("in none of its tensors"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fsdp::optim
