// The step of Adam for GPUs, emulated, against double precision.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/elements.cuh"
#include "support/emulated_kernels.h"

namespace fsdp::kernels::cuda {
namespace {

/// By the type of the gradient.
class CudaAdam : public OfType {
 protected:
  static AdamNumbers numbers(bool decoupled) {
    AdamNumbers numbers{.gradient_scale = 0.3F, .beta1 = 0.9F, .one_minus_beta1 = 0.1F, .beta2 = 0.95F};
    numbers.one_minus_beta2 = 0.05F;
    (decoupled ? numbers.keep : numbers.decay) = decoupled ? 0.99F : 0.1F;
    numbers.step_size = 0.01F / 0.19F;
    numbers.second_correction = 0.31F;
    numbers.eps = 1e-5F;
    return numbers;
  }
  static void step(const EmulatedLaunch& launch, const AdamElements& elements) {
    with_type([&]<typename T>(T) { adam<T>(launch, elements); });
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaAdam, ::testing::Values(at::kFloat, at::kBFloat16), name_of_type);

TEST_P(CudaAdam, StepsAsTheFormulaDoes) {
  for (bool decoupled : {true, false}) {
    const AdamNumbers numbers = CudaAdam::numbers(decoupled);
    for (int64_t shift : {0, 1}) {
      for (int64_t n : {0, 1, 3, 4, 1023, 5001}) {
        SCOPED_TRACE(n);
        const Buffer gradient(random({n}), shift);
        Buffer value(at::randn({n}), shift), exp_avg(at::randn({n}), shift), exp_avg_sq(at::rand({n}), shift);
        const at::Tensor V = value.in_double(), g = gradient.in_double() * double{numbers.gradient_scale} +
                                                    double{numbers.decay} * V;
        const at::Tensor m = double{numbers.beta1} * exp_avg.in_double() +
                             double{numbers.one_minus_beta1} * g,
                         v = double{numbers.beta2} * exp_avg_sq.in_double() +
                             double{numbers.one_minus_beta2} * g * g;
        const at::Tensor expected = double{numbers.keep} * V -
                                    double{numbers.step_size} * m /
                                        (v.sqrt() / double{numbers.second_correction} + double{numbers.eps});
        run_under_all_schedules({&value, &exp_avg, &exp_avg_sq}, [&](const EmulatedLaunch& launch) {
          step(launch, {.value = value.data<float>(),
                        .gradient = gradient.data(),
                        .exp_avg = exp_avg.data<float>(),
                        .exp_avg_sq = exp_avg_sq.data<float>(),
                        .n = n,
                        .numbers = numbers});
        });
        expect_near(value.values(), expected, "value", 1e-6);
        expect_near(exp_avg.values(), m, "exp_avg", 1e-6);
        expect_near(exp_avg_sq.values(), v, "exp_avg_sq", 1e-6);
      }
    }
  }
}

TEST_P(CudaAdam, StepsPartsAsItStepsTheWhole) {
  const Buffer gradient(random({1000}));
  const at::Tensor first_value = at::randn({1000}), first_average = at::randn({1000}),
                   squares = at::rand({1000});
  auto stepped = [&](const std::vector<int64_t>& cuts) {
    const Buffer value(first_value), exp_avg(first_average), exp_avg_sq(squares);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t begin = cuts[i], bytes = begin * static_cast<int64_t>(c10::elementSize(type()));
      step(EmulatedLaunch(), {.value = value.data<float>() + begin,
                              .gradient = static_cast<const char*>(gradient.data()) + bytes,
                              .exp_avg = exp_avg.data<float>() + begin,
                              .exp_avg_sq = exp_avg_sq.data<float>() + begin,
                              .n = cuts[i + 1] - begin,
                              .numbers = numbers(true)});
    }
    return value.values().clone();
  };
  EXPECT_TRUE(have_equal_bits(stepped({0, 1000}), stepped({0, 1, 128, 131, 640, 1000})));
}

TEST_P(CudaAdam, TakesTheScaleFromTheDevice) {
  const int64_t n = 1023;
  for (double scale : {0.25, std::nan("")}) {
    const Buffer gradient(random({n}));
    const at::Tensor value = at::randn({n}), exp_avg = at::randn({n}), exp_avg_sq = at::rand({n});
    const auto stepped = [&](AdamNumbers numbers, const double* on_device) {
      at::Tensor values = value.clone(), averages = exp_avg.clone(), squares = exp_avg_sq.clone();
      step(EmulatedLaunch(), {.value = values.data_ptr<float>(),
                              .gradient = gradient.data(),
                              .exp_avg = averages.data_ptr<float>(),
                              .exp_avg_sq = squares.data_ptr<float>(),
                              .n = n,
                              .numbers = numbers,
                              .gradient_scale = on_device});
      return at::stack({values, averages, squares});
    };
    AdamNumbers numbers = CudaAdam::numbers(/*decoupled=*/true);
    const at::Tensor actual = stepped(numbers, &scale);
    numbers.gradient_scale = static_cast<float>(scale);
    EXPECT_TRUE(at::equal(
        actual, std::isnan(scale) ? at::stack({value, exp_avg, exp_avg_sq}) : stepped(numbers, nullptr)));
  }
}

TEST(CudaOutcome, IsThatOfTheRule) {
  const double sums[] = {6, 25}, local = 2.5;
  StepOutcome outcome;
  const OutcomeRule rule{.ranks = 2, .norm_type = 2, .max_grad_norm = 1, .step = 4};
  decide_outcome(EmulatedLaunch(), {.sums = sums, .local_loss = &local, .rule = rule, .outcome = &outcome});
  EXPECT_EQ(outcome.loss, 3);
  EXPECT_EQ(outcome.grad_norm, 5);
  EXPECT_EQ(outcome.gradient_scale, 1 / (5 + 1e-6));
  EXPECT_EQ(outcome.diverged_step, 0);
}

}  // namespace
}  // namespace fsdp::kernels::cuda
