// Properties of every optimizer, fused and composed.

#include "state/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/util/error.h"
#include "state/optim/shards.h"
#include "support/counting_allocator.h"

namespace fsdp::optim {
namespace {

struct Case {
  std::string name;
  double momentum;
  bool fused;
  bool nesterov = false;
};

class EveryOptimizer : public ::testing::TestWithParam<Case> {
 protected:
  OptimizerOptions options() const {
    OptimizerOptions options;
    options.name = GetParam().name;
    options.momentum = GetParam().momentum;
    options.fused = GetParam().fused;
    options.nesterov = GetParam().nesterov;
    options.weight_decay = 0.1;
    return options;
  }
  std::unique_ptr<Optimizer> make(std::vector<FlatParameter> parameters) const {
    return make_optimizer(options(), std::move(parameters));
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, EveryOptimizer,
    ::testing::Values(Case{"adamw", 0, true}, Case{"adamw", 0, false}, Case{"sgd", 0, true},
                      Case{"sgd", 0, false}, Case{"sgd", 0.9, true}, Case{"sgd", 0.9, false},
                      Case{"sgd", 0.9, true, true}, Case{"sgd", 0.9, false, true}, Case{"adam", 0, true},
                      Case{"adam", 0, false}, Case{"lion", 0, true}, Case{"lion", 0, false},
                      Case{"adamax", 0, true}, Case{"adamax", 0, false}, Case{"adagrad", 0, true},
                      Case{"adagrad", 0, false}, Case{"adadelta", 0, true}, Case{"adadelta", 0, false}),
    [](const auto& info) {
      return info.param.name + (info.param.momentum != 0 ? "_momentum" : "") +
             (info.param.nesterov ? "_nesterov" : "") + (info.param.fused ? "_fused" : "_composed");
    });

TEST_P(EveryOptimizer, UpdatesShardsBitForBitAsTheWhole) {
  for (int64_t n : {1, 15, 16, 17, 100, 1003, 100'003}) {
    at::Tensor value = random_values(n, "value"), gradient = random_values(n, "gradient");
    auto whole = make({parameter_of(value)});
    take_steps(*whole, 3, gradient, 1e-2);
    for (int64_t shards : {2, 3, 7}) {
      int64_t length = (n + shards - 1) / shards;
      for (int64_t begin = 0; begin < n; begin += length) {
        int64_t end = std::min(n, begin + length);
        auto shard = make({parameter_of(value.slice(0, begin, end))});
        take_steps(*shard, 3, gradient.slice(0, begin, end), 1e-2);
        ASSERT_TRUE(
            same_bits(shard->parameters()[0].value, whole->parameters()[0].value.slice(0, begin, end)))
            << n << " elements, [" << begin << ", " << end << ")";
        for (const std::string& name : whole->state_names()) {
          ASSERT_TRUE(same_bits(shard->state(name, 0), whole->state(name, 0).slice(0, begin, end))) << name;
        }
      }
    }
  }
}

TEST_P(EveryOptimizer, TakesGradientsTimesTheirScale) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor value = random_values(1003, "value");
    const at::Tensor gradient = random_values(1003, "gradient").to(type);
    auto scaled = make({parameter_of(value)}), plain = make({parameter_of(value)});
    for (int step = 0; step < 2; ++step) {
      scaled->step({gradient.clone()}, 1e-2, 0.3);
      plain->step({gradient.to(at::kFloat) * 0.3}, 1e-2);
    }
    EXPECT_TRUE(same_bits(scaled->parameters()[0].value, plain->parameters()[0].value)) << type;
  }
}

TEST_P(EveryOptimizer, StepsInPartsAsAtOnce) {
  OptimizerOptions averaging = options();
  averaging.ema_decay = 0.75;
  const std::vector<FlatParameter> parameters = {parameter_of(random_values(1003, "a")),
                                                 parameter_of(random_values(40, "b")),
                                                 parameter_of(random_values(7, "c"))};
  auto copies = [&] {
    std::vector<FlatParameter> copied = parameters;
    for (FlatParameter& parameter : copied) parameter.value = parameter.value.clone();
    return copied;
  };
  auto at_once = make_optimizer(averaging, copies()), in_parts = make_optimizer(averaging, copies());
  EXPECT_TRUE(in_parts->updates_alone());
  for (int step = 1; step <= 3; ++step) {
    std::vector<at::Tensor> gradients = {random_values(1003, "g"), random_values(40, "g"), {}};
    if (step == 2) gradients[1].reset();
    in_parts->begin_step(1e-2, 0.3);
    for (size_t i : {1, 0}) {
      if (gradients[i].defined()) in_parts->update_parameter(i, gradients[i].clone());
    }
    in_parts->end_step();
    at_once->step(gradients, 1e-2, 0.3);
  }
  EXPECT_EQ(in_parts->step_count(), 3);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(in_parts->parameter_step_count(i), at_once->parameter_step_count(i));
    EXPECT_TRUE(same_bits(in_parts->parameters()[i].value, at_once->parameters()[i].value)) << i;
    for (const std::string& name : at_once->state_names()) {
      EXPECT_TRUE(same_bits(in_parts->state(name, i), at_once->state(name, i))) << name << i;
    }
  }
}

TEST_P(EveryOptimizer, CallsTheHookOfAStepBeforeItChangesAnything) {
  const at::Tensor value = random_values(40, "value"), gradient = random_values(40, "gradient");
  auto optimizer = make({parameter_of(value)});
  int calls = 0;
  optimizer->set_step_pre_hook([&] {
    EXPECT_EQ(same_bits(optimizer->parameters()[0].value, value), calls == 0);
    EXPECT_EQ(optimizer->step_count(), calls++);
  });
  optimizer->step({gradient}, 1e-2);
  optimizer->begin_step(1e-2);
  optimizer->update_parameter(0, gradient);
  optimizer->end_step();
  optimizer->step_scaled_on_device({gradient}, 1e-2, at::ones({}, at::kDouble));
  EXPECT_EQ(calls, 3);
  optimizer->set_step_pre_hook([] { throw std::runtime_error("no"); });
  EXPECT_ANY_THROW(optimizer->step({gradient}, 1e-2));
  optimizer->set_step_pre_hook(nullptr);
  optimizer->step({gradient}, 1e-2);
  EXPECT_EQ(optimizer->step_count(), 4) << "a step whose hook throws has not begun";
}

TEST_P(EveryOptimizer, RefusesToGoOnAfterAStepThatDidNotEnd) {
  auto optimizer = make({parameter_of(random_values(40, "value"))});
  const at::Tensor gradient = random_values(40, "gradient");
  optimizer->begin_step(1e-2);
  optimizer->update_parameter(0, gradient);
  try {
    optimizer->step({gradient}, 1e-2);
    FAIL() << "went on";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("step 1 of the optimizer failed"), std::string::npos)
        << error.what();
  }
  optimizer->set_step_count(0);  // as when a checkpoint is loaded
  optimizer->step({gradient}, 1e-2);
  EXPECT_EQ(optimizer->step_count(), 1);
}

TEST_P(EveryOptimizer, KeepsAnAverageOfItsWeightsWithoutTouchingThem) {
  const int64_t n = 1003;
  at::Tensor value = random_values(n, "value"), gradient = random_values(n, "gradient");
  auto plain = make({parameter_of(value)});
  OptimizerOptions averaging = options();
  averaging.ema_decay = 0.75;
  auto averaged = make_optimizer(averaging, {parameter_of(value)});
  at::Tensor expected;
  for (int step = 1; step <= 4; ++step) {
    take_steps(*plain, 1, gradient, 1e-2);
    take_steps(*averaged, 1, gradient, 1e-2);
    const at::Tensor now = plain->parameters()[0].value.to(at::kDouble);
    expected = step == 1 ? now.clone() : 0.75 * expected + 0.25 * now;
  }
  EXPECT_TRUE(same_bits(plain->parameters()[0].value, averaged->parameters()[0].value));
  EXPECT_LT((averaged->state("ema", 0) - expected).abs().max().item<double>(), 1e-6);
  // Shards give the same bits.
  for (int64_t begin = 0; begin < n; begin += 300) {
    const int64_t end = std::min(n, begin + 300);
    auto shard = make_optimizer(averaging, {parameter_of(value.slice(0, begin, end))});
    take_steps(*shard, 4, gradient.slice(0, begin, end), 1e-2);
    if (!averaging.fused) continue;  // libtorch's kernel may round the end of a vector otherwise
    EXPECT_TRUE(same_bits(shard->state("ema", 0), averaged->state("ema", 0).slice(0, begin, end)));
  }
}

TEST_P(EveryOptimizer, DoesNotDependOnTheNumberOfThreads) {
  int before = at::get_num_threads();
  at::Tensor value = random_values(200'011, "value"), gradient = random_values(200'011, "gradient");
  std::vector<at::Tensor> results;
  for (int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    auto optimizer = make({parameter_of(value)});
    take_steps(*optimizer, 2, gradient, 1e-2);
    results.push_back(optimizer->parameters()[0].value);
  }
  at::set_num_threads(before);
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
}

TEST_P(EveryOptimizer, TouchesNothingOutsideTheRanges) {
  at::Tensor value = random_values(100, "value"), gradient = random_values(100, "gradient");
  // Padding may hold anything.
  value.slice(0, 60, 64).fill_(std::numeric_limits<float>::quiet_NaN());
  FlatParameter parameter{"p", value.clone(), {{3, 40}, {40, 40}, {40, 60, {.decay = false}}, {64, 97}}};
  auto optimizer = make({parameter});
  take_steps(*optimizer, 3, gradient, 1e-2);
  const at::Tensor& updated = optimizer->parameters()[0].value;
  for (auto [begin, end] : {std::pair{0, 3}, {60, 64}, {97, 100}}) {
    EXPECT_TRUE(same_bits(updated.slice(0, begin, end), value.slice(0, begin, end)));
    for (const std::string& name : optimizer->state_names()) {
      EXPECT_TRUE(optimizer->state(name, 0).slice(0, begin, end).eq(0).all().item<bool>());
    }
  }
  EXPECT_TRUE(updated.slice(0, 3, 60).ne(value.slice(0, 3, 60)).all().item<bool>());
  EXPECT_TRUE(updated.slice(0, 64, 97).ne(value.slice(0, 64, 97)).all().item<bool>());
}

TEST_P(EveryOptimizer, DecaysOnlyTheRangesThatDecay) {
  at::Tensor value = random_values(50, "value"), gradient = random_values(50, "gradient");
  auto mixed = make({{"p", value.clone(), {{0, 20}, {20, 50, {.decay = false}}}}});
  auto decayed = make({parameter_of(value)});
  OptimizerOptions without = options();
  without.weight_decay = 0;
  auto plain = make_optimizer(without, {parameter_of(value)});
  for (Optimizer* optimizer : {mixed.get(), decayed.get(), plain.get()})
    take_steps(*optimizer, 3, gradient, 1e-2);
  const at::Tensor& found = mixed->parameters()[0].value;
  EXPECT_TRUE(same_bits(found.slice(0, 0, 20), decayed->parameters()[0].value.slice(0, 0, 20)));
  EXPECT_TRUE(same_bits(found.slice(0, 20, 50), plain->parameters()[0].value.slice(0, 20, 50)));
  EXPECT_TRUE(decayed->parameters()[0].value.ne(plain->parameters()[0].value).all().item<bool>());
}

TEST_P(EveryOptimizer, ContinuesFromSavedStateAsIfUninterrupted) {
  at::Tensor value = random_values(77, "value"), gradient = random_values(77, "gradient");
  auto through = make({parameter_of(value)});
  take_steps(*through, 6, gradient, 1e-2);
  auto first = make({parameter_of(value)});
  take_steps(*first, 3, gradient, 1e-2);
  auto second = make({parameter_of(first->parameters()[0].value)});
  for (const std::string& name : first->state_names()) second->state(name, 0).copy_(first->state(name, 0));
  second->set_step_count(first->step_count());
  take_steps(*second, 3, gradient, 1e-2);
  EXPECT_EQ(second->step_count(), 6);
  EXPECT_TRUE(same_bits(second->parameters()[0].value, through->parameters()[0].value));
}

TEST_P(EveryOptimizer, SkipsParametersWithoutGradient) {
  at::Tensor value = random_values(20, "value"), gradient = random_values(20, "gradient");
  auto optimizer = make({parameter_of(value), parameter_of(value)});
  optimizer->step({at::Tensor(), gradient}, 1e-2);
  EXPECT_EQ(optimizer->step_count(), 1);
  EXPECT_TRUE(same_bits(optimizer->parameters()[0].value, value));
  EXPECT_FALSE(same_bits(optimizer->parameters()[1].value, value));
  for (const std::string& name : optimizer->state_names()) {
    EXPECT_TRUE(optimizer->state(name, 0).eq(0).all().item<bool>());
  }
}

TEST_P(EveryOptimizer, LeavesGradientsAlone) {
  at::Tensor gradient = random_values(37, "gradient"), before = gradient.clone();
  make({parameter_of(random_values(37, "value"))})->step({gradient}, 1e-2);
  EXPECT_TRUE(same_bits(gradient, before));
}

TEST_P(EveryOptimizer, TakesLowPrecisionGradientsAsIfConvertedBefore) {
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::Tensor values[] = {random_values(100, "value"), random_values(37, "other value")};
    at::Tensor gradients[] = {random_values(100, "gradient").to(type), random_values(37, "other").to(type)};
    auto mixed = make({parameter_of(values[0]), parameter_of(values[1])});
    auto converted = make({parameter_of(values[0]), parameter_of(values[1])});
    for (int step = 0; step < 3; ++step) {
      mixed->step({gradients[0], gradients[1]}, 1e-2);
      converted->step({gradients[0].to(at::kFloat), gradients[1].to(at::kFloat)}, 1e-2);
    }
    for (size_t i : {0, 1}) {
      EXPECT_FALSE(same_bits(mixed->parameters()[i].value, values[i]));
      EXPECT_TRUE(same_bits(mixed->parameters()[i].value, converted->parameters()[i].value));
      for (const std::string& name : mixed->state_names()) {
        EXPECT_TRUE(same_bits(mixed->state(name, i), converted->state(name, i)));
      }
    }
  }
}

TEST_P(EveryOptimizer, HoldsOneConvertedGradientAtATime) {
  constexpr int64_t kElements = 160'000, kBytes = 4 * kElements;
  auto peak_with = [&](at::ScalarType type) {
    std::vector<FlatParameter> parameters;
    std::vector<at::Tensor> gradients;
    for (int i = 0; i < 4; ++i) {
      parameters.push_back(parameter_of(at::ones({kElements})));
      gradients.push_back(at::ones({kElements}, type));
    }
    auto optimizer = make(std::move(parameters));
    testing::CountingAllocator::Scope counter;
    optimizer->step(gradients, 1e-2);
    EXPECT_EQ(counter.live_bytes(), 0);
    return counter.peak_bytes();
  };
  const bool converts = !options().fused || !options().name.starts_with("adam") || options().name == "adamax";
  // The composed arithmetic allocates intermediates.
  EXPECT_EQ(peak_with(at::kBFloat16), peak_with(at::kFloat) + (converts ? kBytes : 0));
}

TEST_P(EveryOptimizer, CountsTheStepsOfEachParameterApart) {
  at::Tensor value = random_values(37, "value");
  at::Tensor gradients[] = {random_values(37, "a"), random_values(37, "b"), random_values(37, "c")};
  // The first parameter has no gradient in the second step: as if that step did not exist.
  auto optimizer = make({parameter_of(value), parameter_of(value)}), alone = make({parameter_of(value)});
  optimizer->step({gradients[0], gradients[0]}, 1e-2);
  optimizer->step({at::Tensor(), gradients[1]}, 1e-2);
  optimizer->step({gradients[2], gradients[2]}, 1e-2);
  alone->step({gradients[0]}, 1e-2);
  alone->step({gradients[2]}, 1e-2);
  EXPECT_EQ(optimizer->step_count(), 3);
  EXPECT_EQ(optimizer->parameter_step_count(0), 2);
  EXPECT_EQ(optimizer->parameter_step_count(1), 3);
  EXPECT_TRUE(same_bits(optimizer->parameters()[0].value, alone->parameters()[0].value));
}

TEST_P(EveryOptimizer, RestoresTheStepsOfEachParameter) {
  at::Tensor value = random_values(37, "value"), gradient = random_values(37, "gradient");
  auto take = [&](Optimizer& optimizer, bool skip) {
    optimizer.step({skip ? at::Tensor() : gradient, gradient}, 1e-2);
  };
  auto through = make({parameter_of(value), parameter_of(value)});
  auto first = make({parameter_of(value), parameter_of(value)});
  for (bool skip : {false, true, true, false}) take(*through, skip);
  for (bool skip : {false, true}) take(*first, skip);
  auto second = make({first->parameters()[0], first->parameters()[1]});
  second->set_step_count(first->step_count());
  EXPECT_EQ(second->parameter_step_count(0), 2) << "the global count alone stands for every parameter";
  for (size_t i : {0, 1}) {
    second->set_parameter_step_count(i, first->parameter_step_count(i));
    for (const std::string& name : first->state_names()) {
      second->state(name, i).copy_(first->state(name, i));
    }
  }
  for (bool skip : {true, false}) take(*second, skip);
  EXPECT_EQ(second->step_count(), 4);
  EXPECT_EQ(second->parameter_step_count(0), 2);
  for (size_t i : {0, 1}) {
    EXPECT_TRUE(same_bits(second->parameters()[i].value, through->parameters()[i].value));
  }
}

TEST_P(EveryOptimizer, UpdatesLeavesOfAutograd) {
  at::Tensor value = random_values(37, "value").requires_grad_();
  auto optimizer = make({{"p", value, {{0, 37}}}});
  optimizer->step({at::ones({37})}, 1e-2);
  EXPECT_TRUE(value.is_leaf());
  EXPECT_FALSE(optimizer->parameters()[0].value.grad_fn());
}

TEST_P(EveryOptimizer, BearsEmptyShards) {
  auto optimizer = make({{"p", at::empty({0}), {}}, {"q", at::zeros({5}), {}}});
  optimizer->step({at::empty({0}), at::ones({5})}, 1e-2);
  EXPECT_TRUE(optimizer->parameters()[1].value.eq(0).all().item<bool>());
}

TEST_P(EveryOptimizer, AssertsItsContract) {
  auto optimizer = make({parameter_of(at::zeros({5}))});
  EXPECT_THROW(optimizer->step({}, 1e-2), util::Error);
  EXPECT_THROW(optimizer->step({at::zeros({4})}, 1e-2), util::Error);
  EXPECT_THROW(optimizer->step({at::zeros({5}, at::kDouble)}, 1e-2), util::Error);
  EXPECT_EQ(optimizer->step_count(), 0);
  EXPECT_THROW(optimizer->state("no such state", 0), util::Error);
  EXPECT_THROW(optimizer->step({at::zeros({5}, at::kInt)}, 1e-2), util::Error);
  EXPECT_THROW(optimizer->step({at::zeros({10}, at::kHalf).slice(0, 0, 10, 2)}, 1e-2), util::Error);
  EXPECT_THROW(optimizer->set_step_count(-1), util::Error);
  EXPECT_THROW(optimizer->set_parameter_step_count(0, -1), util::Error);
  EXPECT_THROW(optimizer->set_parameter_step_count(0, 1), util::Error);
  EXPECT_THROW(make({{"p", at::zeros({5}), {{0, 6}}}}), util::Error);
  EXPECT_THROW(make({{"p", at::zeros({5}), {{0, 3}, {2, 5}}}}), util::Error);
  EXPECT_THROW(make({{"p", at::zeros({5, 2}), {}}}), util::Error);
}

void expect_refused(const OptimizerOptions& options, const std::string& part) {
  try {
    make_optimizer(options, {});
    ADD_FAILURE() << "not refused: " << part;
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(MakeOptimizer, MakesEveryOneThatHasAName) {
  WholeTensors matrices;
  for (const std::string& name : optimizer_names()) {
    OptimizerOptions options;
    options.name = name;
    options.momentum = 0.9;
    const auto optimizer = make_optimizer(options, {parameter_of(at::zeros({2}))}, &matrices);
    EXPECT_EQ(optimizer->options().name, name);
    EXPECT_FALSE(optimizer->states().empty()) << name;
  }
}

TEST(MakeOptimizer, RefusesOptionsWithoutMeaning) {
  OptimizerOptions options;
  options.name = "adamn";
  expect_refused(options, "did you mean \"adamw\"?");
  options = {};
  options.lr = -1;
  expect_refused(options, "optimizer.lr = -1");
  options = {};
  options.weight_decay = std::numeric_limits<double>::infinity();
  expect_refused(options, "optimizer.weight_decay = inf");
  options = {};
  options.betas = {0.9};
  expect_refused(options, "betas must have two numbers, but has 1");
  options.betas = {0.9, 1.0};
  expect_refused(options, "betas must be at least 0 and below 1, but one of them is 1");
  options = {};
  options.eps = -1;
  expect_refused(options, "optimizer.eps = -1");
  options = {};
  options.name = "adadelta";
  options.rho = 1.5;
  expect_refused(options, "optimizer.rho = 1.5");
  options = {};
  options.name = "sgd";
  options.momentum = 1;
  expect_refused(options, "optimizer.momentum = 1");
}

}  // namespace
}  // namespace fsdp::optim
