// The step of Adam for GPUs, emulated, against double precision.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/util/error.h"
#include "model/kernels/block_codes.h"
#include "model/kernels/cuda/elements.cuh"
#include "model/kernels/stochastic_rounding.h"
#include "support/emulated_kernels.h"

namespace fsdp::kernels::cuda {
namespace {

/// By the type of the gradient.
class CudaAdam : public OfType {
 protected:
  static constexpr AdamNumbers kNumbers{.gradient_scale = 0.3F,
                                        .beta1 = 0.9F,
                                        .one_minus_beta1 = 0.1F,
                                        .beta2 = 0.95F,
                                        .one_minus_beta2 = 0.05F,
                                        .eps = 1e-5F};
  static constexpr AdamRates kDecoupled{
      .keep = 0.99F, .step_size = 0.01F / 0.19F, .second_correction = 0.31F};
  static constexpr AdamRates kInGradient{
      .decay = 0.1F, .step_size = 0.01F / 0.19F, .second_correction = 0.31F};

  template <typename Launch>
  static void step(const Launch& launch, const AdamStep& step) {
    with_type([&]<typename T>(T) { adam<T>(launch, step); });
  }

  /// Elements [begin, end) of all.
  static AdamElements part(const AdamElements& all, int64_t begin, int64_t end, const AdamRates& rates) {
    const int64_t bytes = begin * static_cast<int64_t>(c10::elementSize(type()));
    return {.value = all.value + begin,
            .gradient = static_cast<const char*>(all.gradient) + bytes,
            .exp_avg = all.exp_avg + begin,
            .exp_avg_sq = all.exp_avg_sq + begin,
            .n = end - begin,
            .rates = rates};
  }
};

/// Counts the launches of what it emulates.
class CountingLaunch {
 public:
  template <typename Kernel>
  void run(const Grid& grid, const typename Kernel::Arguments& arguments) const {
    ++launches;
    launch_.run<Kernel>(grid, arguments);
  }
  mutable int launches = 0;

 private:
  EmulatedLaunch launch_;
};
INSTANTIATE_TEST_SUITE_P(Types, CudaAdam, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         name_of_type);

TEST_P(CudaAdam, StepsAsTheFormulaDoes) {
  for (bool decoupled : {true, false}) {
    const AdamRates rates = decoupled ? kDecoupled : kInGradient;
    for (int64_t shift : {0, 1}) {
      for (int64_t n : {0, 1, 3, 4, 1023, 5001}) {
        SCOPED_TRACE(n);
        const Buffer gradient(random({n}), shift);
        Buffer value(at::randn({n}), shift), exp_avg(at::randn({n}), shift), exp_avg_sq(at::rand({n}), shift);
        const at::Tensor V = value.in_double(),
                         g = gradient.in_double() * double{kNumbers.gradient_scale} + double{rates.decay} * V;
        const at::Tensor m = double{kNumbers.beta1} * exp_avg.in_double() +
                             double{kNumbers.one_minus_beta1} * g,
                         v = double{kNumbers.beta2} * exp_avg_sq.in_double() +
                             double{kNumbers.one_minus_beta2} * g * g;
        const at::Tensor expected =
            double{rates.keep} * V -
            double{rates.step_size} * m / (v.sqrt() / double{rates.second_correction} + double{kNumbers.eps});
        run_under_all_schedules({&value, &exp_avg, &exp_avg_sq}, [&](const EmulatedLaunch& launch) {
          step(launch, {.parts = {{.value = value.data<float>(),
                                   .gradient = gradient.data(),
                                   .exp_avg = exp_avg.data<float>(),
                                   .exp_avg_sq = exp_avg_sq.data<float>(),
                                   .n = n,
                                   .rates = rates}},
                        .numbers = kNumbers});
        });
        expect_near(value.values(), expected, "value", 1e-6);
        expect_near(exp_avg.values(), m, "exp_avg", 1e-6);
        expect_near(exp_avg_sq.values(), v, "exp_avg_sq", 1e-6);
      }
    }
  }
}

// Also where the copy is not aligned as its value is, and nothing beyond the elements.
TEST_P(CudaAdam, WritesTheNewValuesIn16Bits) {
  for (const at::ScalarType copied : {at::kBFloat16, at::kHalf}) {
    for (const auto& [n, shift] : std::vector<std::pair<int64_t, int64_t>>{{1024, 0}, {1023, 0}, {77, 1}}) {
      const Buffer gradient(random({n}));
      const at::Tensor value = at::randn({n}), exp_avg = at::randn({n}), exp_avg_sq = at::rand({n});
      const at::Tensor memory = at::full({n + shift + 1}, 7.0, copied), copy = memory.narrow(0, shift, n);
      step(EmulatedLaunch(), {.parts = {{.value = value.data_ptr<float>(),
                                         .gradient = gradient.data(),
                                         .exp_avg = exp_avg.data_ptr<float>(),
                                         .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
                                         .n = n,
                                         .rates = kDecoupled,
                                         .copy = copy.data_ptr()}},
                              .numbers = kNumbers,
                              .copies_are_half = copied == at::kHalf});
      EXPECT_TRUE(at::equal(copy, value.to(copied))) << copied << ", " << n;
      EXPECT_EQ(memory[n + shift].item<float>(), 7.0F) << copied << ", " << n;
    }
  }
}

TEST_P(CudaAdam, StepsPartsAsItStepsTheWhole) {
  const Buffer gradient(random({1000}));
  const at::Tensor first_value = at::randn({1000}), first_average = at::randn({1000}),
                   squares = at::rand({1000});
  const auto stepped = [&](const std::vector<int64_t>& cuts, bool together) {
    const Buffer value(first_value), exp_avg(first_average), exp_avg_sq(squares);
    const AdamElements all{.value = value.data<float>(),
                           .gradient = gradient.data(),
                           .exp_avg = exp_avg.data<float>(),
                           .exp_avg_sq = exp_avg_sq.data<float>()};
    AdamStep one{.numbers = kNumbers};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      one.parts.push_back(part(all, cuts[i], cuts[i + 1], kDecoupled));
      if (together && i + 2 < cuts.size()) continue;
      step(EmulatedLaunch(), one);
      one.parts.clear();
    }
    return value.values().clone();
  };
  const std::vector<int64_t> cuts{0, 1, 128, 131, 640, 640, 1000};
  EXPECT_TRUE(have_equal_bits(stepped({0, 1000}, false), stepped(cuts, false)));
  EXPECT_TRUE(have_equal_bits(stepped({0, 1000}, false), stepped(cuts, true)));
}

// A part has blocks of its own, and rates of its own.
TEST_P(CudaAdam, StepsManyPartsInOneLaunch) {
  constexpr int64_t kOfBlock = 1024;  // elements
  std::vector<int64_t> cuts{0};
  for (int64_t i = 0; i < 2 * AdamTable::kParts; ++i) {
    cuts.push_back(cuts.back() + (i % 5 == 0 ? kOfBlock + 8 : 8 * (i % 3)));
  }
  const int64_t n = cuts.back();
  const Buffer gradient(random({n}));
  const at::Tensor value = at::randn({n}), exp_avg = at::randn({n}), exp_avg_sq = at::rand({n});
  struct Stepped {
    at::Tensor tensors;
    int launches;
  };
  const auto stepped = [&](size_t parts_of_call) {
    const at::Tensor values = value.clone(), averages = exp_avg.clone(), squares = exp_avg_sq.clone();
    const AdamElements all{.value = values.data_ptr<float>(),
                           .gradient = gradient.data(),
                           .exp_avg = averages.data_ptr<float>(),
                           .exp_avg_sq = squares.data_ptr<float>()};
    const CountingLaunch launch;
    AdamStep some{.numbers = kNumbers};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      some.parts.push_back(part(all, cuts[i], cuts[i + 1], i % 2 == 0 ? kDecoupled : kInGradient));
      if (some.parts.size() < parts_of_call && i + 2 < cuts.size()) continue;
      step(launch, some);
      some.parts.clear();
    }
    return Stepped{at::stack({values, averages, squares}), launch.launches};
  };
  const Stepped together = stepped(cuts.size()), one_by_one = stepped(1);
  EXPECT_TRUE(have_equal_bits(together.tensors, one_by_one.tensors));
  // A third of the short parts are empty.
  EXPECT_GT(one_by_one.launches, AdamTable::kParts);
  EXPECT_EQ(together.launches, 2);
}

TEST_P(CudaAdam, TakesTheScaleFromTheDevice) {
  const int64_t n = 1023;
  for (double scale : {0.25, std::nan("")}) {
    const Buffer gradient(random({n}));
    const at::Tensor value = at::randn({n}), exp_avg = at::randn({n}), exp_avg_sq = at::rand({n});
    const auto stepped = [&](float gradient_scale, const double* on_device) {
      AdamNumbers numbers = kNumbers;
      numbers.gradient_scale = gradient_scale;
      at::Tensor values = value.clone(), averages = exp_avg.clone(), squares = exp_avg_sq.clone();
      step(EmulatedLaunch(), {.parts = {{.value = values.data_ptr<float>(),
                                         .gradient = gradient.data(),
                                         .exp_avg = averages.data_ptr<float>(),
                                         .exp_avg_sq = squares.data_ptr<float>(),
                                         .n = n,
                                         .rates = kDecoupled}},
                              .numbers = numbers,
                              .gradient_scale = on_device});
      return at::stack({values, averages, squares});
    };
    const at::Tensor expected = std::isnan(scale) ? at::stack({value, exp_avg, exp_avg_sq})
                                                  : stepped(static_cast<float>(scale), nullptr);
    EXPECT_TRUE(at::equal(stepped(1, &scale), expected));
  }
}

// Bit for bit as round_stochastically() rounds averages of fp32 on the CPU, for any part of a matrix.
TEST_P(CudaAdam, RoundsAveragesIn16BitsAsTheCpuDoes) {
  const uint64_t keys[] = {0x123456789abcdef0, 0xfedcba9876543210};
  constexpr int64_t kHuge = (int64_t{1} << 32) - 500;
  for (const util::Rectangle& part :
       {util::Rectangle{0, 5001}, util::Rectangle{3, 1030}, util::Rectangle{kHuge, kHuge + 2048},
        util::Rectangle{12, 12 + 37, 90, 3, 80}, util::Rectangle{1, 2, 90, 0, 90}}) {
    for (int64_t first : {0, 4, 7}) {
      const int64_t n = part.numel() - first, columns = part.rows > 1 ? 61 : kHuge + 4096;
      const Buffer gradient(random({n}));
      const at::Tensor value = at::randn({n}), exp_avg = at::randn({n}).to(at::kBFloat16),
                       exp_avg_sq = at::rand({n}).to(at::kBFloat16);
      const at::Tensor wide_value = value.clone(), wide = exp_avg.to(at::kFloat),
                       wide_sq = exp_avg_sq.to(at::kFloat);
      step(EmulatedLaunch(), {.parts = {{.value = wide_value.data_ptr<float>(),
                                         .gradient = gradient.data(),
                                         .exp_avg = wide.data_ptr<float>(),
                                         .exp_avg_sq = wide_sq.data_ptr<float>(),
                                         .n = n,
                                         .rates = kDecoupled}},
                              .numbers = kNumbers});
      const RoundedAdamElements elements{{.value = value.data_ptr<float>(),
                                          .gradient = gradient.data(),
                                          .exp_avg = static_cast<uint16_t*>(exp_avg.data_ptr()),
                                          .exp_avg_sq = static_cast<uint16_t*>(exp_avg_sq.data_ptr()),
                                          .n = n,
                                          .rates = kDecoupled},
                                         {.origin = part.row_begin * columns + part.begin,
                                          .first = first,
                                          .length = part.length(),
                                          .gap = part.height() > 1 ? columns - part.length() : 0},
                                         {keys[0], keys[1]}};
      step(EmulatedLaunch(), {.rounded_parts = {elements}, .numbers = kNumbers});
      EXPECT_TRUE(have_equal_bits(value, wide_value));
      const auto expect_rounded = [&](const at::Tensor& found, const at::Tensor& exact, uint64_t key) {
        const at::Tensor expected = at::empty_like(found);
        round_stochastically(exact, expected, {.key = key, .columns = columns, .part = part, .first = first});
        EXPECT_TRUE(at::equal(found, expected)) << part.begin << " " << part.rows << " " << first;
      };
      expect_rounded(exp_avg, wide, keys[0]);
      expect_rounded(exp_avg_sq, wide_sq, keys[1]);
    }
  }
}

// Bit for bit as encode() encodes averages of fp32 on the CPU, also in packs, and in several parts.
TEST_P(CudaAdam, EncodesAveragesIn8BitsAsTheCpuDoes) {
  for (int64_t shift : {0, 4, 1}) {
    for (int64_t n : {1, 200, 256, 2048, 5001}) {
      SCOPED_TRACE(concat(n, " shifted by ", shift));
      const Buffer gradient(random({n}), shift);
      const auto coded = [&](const at::Tensor& values, bool is_signed) {
        const int64_t blocks = coded_blocks(0, n);
        BlockCodes codes{at::zeros({n + shift}, at::kByte).narrow(0, shift, n), at::zeros({blocks}), 0,
                         is_signed};
        encode(values, codes);
        return codes;
      };
      const BlockCodes exp_avg = coded(at::randn({n}), true), exp_avg_sq = coded(at::rand({n}), false);
      Buffer value(at::randn({n}), shift);
      const at::Tensor wide_value = value.values().clone(), wide = decoded(exp_avg),
                       wide_sq = decoded(exp_avg_sq), copy = at::zeros({n}, at::kBFloat16);
      step(EmulatedLaunch(), {.parts = {{.value = wide_value.data_ptr<float>(),
                                         .gradient = gradient.data(),
                                         .exp_avg = wide.data_ptr<float>(),
                                         .exp_avg_sq = wide_sq.data_ptr<float>(),
                                         .n = n,
                                         .rates = kDecoupled}},
                              .numbers = kNumbers});
      const CodedAdamElements all{{.value = value.data<float>(),
                                   .gradient = gradient.data(),
                                   .exp_avg = exp_avg.codes.data_ptr<uint8_t>(),
                                   .exp_avg_sq = exp_avg_sq.codes.data_ptr<uint8_t>(),
                                   .n = n,
                                   .rates = kDecoupled,
                                   .copy = copy.data_ptr()},
                                  exp_avg.scales.data_ptr<float>(),
                                  exp_avg_sq.scales.data_ptr<float>()};
      const double nothing = std::nan("");
      step(EmulatedLaunch(), {.coded_parts = {all}, .numbers = kNumbers, .gradient_scale = &nothing});
      EXPECT_FALSE(have_equal_bits(value.values(), wide_value)) << "updates in spite of a scale that is NaN";
      step(EmulatedLaunch(), {.coded_parts = {all}, .numbers = kNumbers});
      EXPECT_TRUE(have_equal_bits(value.values(), wide_value));
      EXPECT_TRUE(at::equal(copy, wide_value.to(at::kBFloat16)));
      const auto expect_coded = [&](const BlockCodes& found, const at::Tensor& exact) {
        const BlockCodes expected = coded(exact, found.is_signed);
        EXPECT_TRUE(at::equal(found.codes, expected.codes));
        EXPECT_TRUE(have_equal_bits(found.scales, expected.scales));
      };
      expect_coded(exp_avg, wide);
      expect_coded(exp_avg_sq, wide_sq);
    }
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
