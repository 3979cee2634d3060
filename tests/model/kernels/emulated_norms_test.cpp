// The kernels of norms for GPUs, emulated, against double precision and against those of the CPU.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <vector>

#include "model/kernels/cuda/columns.cuh"
#include "model/kernels/cuda/norms.cuh"
#include "model/kernels/row_kernels.h"
#include "support/emulated_kernels.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr double kEpsilon = 1e-3;

struct Case {
  int64_t rows, width, shift;
  bool with_residual;
};

class CudaNorms : public OfType {
 protected:
  /// Widths for every shape of teams, full and not, odd ones, and memory that is not aligned.
  static std::vector<Case> cases() {
    std::vector<Case> cases;
    bool with_residual = false;
    for (int64_t packs : {1, 32, 33, 64, 100, 128, 129, 256, 300, 512, 600, 1024, 1500}) {
      const int64_t rows = packs < 100 ? 19 : 3;
      cases.push_back({.rows = rows, .width = packs * pack(), .shift = 0, .with_residual = with_residual});
      with_residual = !with_residual;
    }
    cases.push_back({.rows = 2, .width = 2049 * pack(), .shift = 0, .with_residual = true});  // not held
    for (int64_t width : {1, 3, 7, 257, 1001}) {
      cases.push_back({.rows = 5, .width = width, .shift = 0, .with_residual = true});
    }
    cases.push_back({.rows = 4, .width = 40 * pack(), .shift = 1, .with_residual = true});
    cases.push_back({.rows = 0, .width = 64, .shift = 0, .with_residual = false});
    cases.push_back({.rows = 1, .width = 768, .shift = 0, .with_residual = false});
    return cases;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, CudaNorms, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         name_of_type);

std::string text_of(const Case& c) {
  return std::to_string(c.rows) + " rows of " + std::to_string(c.width) + ", shift " +
         std::to_string(c.shift) + (c.with_residual ? ", with residual" : "");
}

TEST_P(CudaNorms, RmsNormIsThatOfTheFormulaAndOfTheCpu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    const Buffer x(random({c.rows, c.width}), c.shift), residual(random({c.rows, c.width}), c.shift),
        weight(random({c.width}) + 1, c.shift);
    Buffer y({c.rows, c.width}, type(), c.shift), sum({c.rows, c.width}, type(), c.shift),
        reciprocal({c.rows}, at::kFloat);
    auto arguments = [&](const Buffer& to, const Buffer& sum_to, const Buffer& reciprocal_to) {
      return NormRows{.x = x.data(),
                      .residual = c.with_residual ? residual.data() : nullptr,
                      .sum = c.with_residual ? sum_to.data() : nullptr,
                      .weight = weight.data(),
                      .y = to.data(),
                      .reciprocal = reciprocal_to.data<float>(),
                      .rows = c.rows,
                      .width = c.width,
                      .epsilon = kEpsilon};
    };
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&y, &sum, &reciprocal}, [&](const EmulatedLaunch& launch) {
        rms_norm<T>(launch, arguments(y, sum, reciprocal));
      });
    });

    const at::Tensor normed =
        c.with_residual ? (x.in_double() + residual.in_double()).to(type()) : x.values();
    EXPECT_TRUE(!c.with_residual || have_equal_bits(sum.values(), normed));
    const at::Tensor X = normed.to(at::kDouble), r = (X.square().mean(-1, true) + kEpsilon).rsqrt();
    expect_near(y.values(), X * r * weight.in_double(), "y");
    expect_near(reciprocal.values(), r.flatten(), "reciprocal");

    Buffer cpu_y({c.rows, c.width}, type()), cpu_sum({c.rows, c.width}, type()), cpu_r({c.rows}, at::kFloat);
    cpu_row_kernels(element()).rms_norm(arguments(cpu_y, cpu_sum, cpu_r));
    expect_near(y.values(), cpu_y.values(), "y of the CPU");
  }
}

/// The gradient of a parameter from its sums [parts, width].
at::Tensor total_of(const Buffer& sums) {
  Buffer to({sums.values().size(1)}, at::kFloat);
  const PartTotal total{.sums = sums.data<float>(),
                        .parts = sums.values().size(0),
                        .width = sums.values().size(1),
                        .to = to.data()};
  run_under_all_schedules({&to}, [&](const EmulatedLaunch& launch) { totals<float>(launch, &total, 1); });
  return to.values();
}

/// Two to five parts, the last of them smaller.
RowParts parts_of(const Case& c) { return {c.rows, c.width, {.grain = 2 * c.width, .most = 5}}; }

TEST_P(CudaNorms, RmsNormBackwardIsThatOfTheFormulaAndOfTheCpu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    const RowParts parts = parts_of(c);
    const Buffer x(random({c.rows, c.width}), c.shift), dy(random({c.rows, c.width}), c.shift),
        dsum(random({c.rows, c.width}), c.shift), weight(random({c.width}) + 1, c.shift);
    at::Tensor X = x.in_double().requires_grad_(), W = weight.in_double().requires_grad_();
    const at::Tensor r = (X.square().mean(-1, true) + kEpsilon).rsqrt();
    (X * r * W).backward(dy.in_double());
    const Buffer reciprocal(r.detach().flatten().to(at::kFloat));
    Buffer dx({c.rows, c.width}, type(), c.shift), sums({parts.count(), c.width}, at::kFloat);
    auto arguments = [&](const Buffer& to, const Buffer& sums_to) {
      return NormGradRows{.dy = dy.data(),
                          .x = x.data(),
                          .weight = weight.data(),
                          .reciprocal = reciprocal.data<float>(),
                          .dsum = c.with_residual ? dsum.data() : nullptr,
                          .dx = to.data(),
                          .dweight = sums_to.data<float>(),
                          .rows = c.rows,
                          .width = c.width};
    };
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&dx, &sums}, [&](const EmulatedLaunch& launch) {
        rms_norm_backward<T>(launch, arguments(dx, sums), parts);
      });
    });
    expect_near(dx.values(), c.with_residual ? X.grad() + dsum.in_double() : X.grad(), "dx");
    expect_near(total_of(sums), W.grad(), "dweight", 1e-5);

    Buffer cpu_dx({c.rows, c.width}, type()), cpu_sums(at::zeros({parts.count(), c.width}));
    cpu_row_kernels(element()).rms_norm_backward(arguments(cpu_dx, cpu_sums), parts);
    expect_near(dx.values(), cpu_dx.values(), "dx of the CPU");
    expect_near(sums.values(), cpu_sums.values(), "sums of the CPU", 1e-5);
  }
}

TEST_P(CudaNorms, LayerNormIsThatOfTheFormulaAndOfTheCpu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    const Buffer x(random({c.rows, c.width}) + 2, c.shift), residual(random({c.rows, c.width}), c.shift),
        weight(random({c.width}) + 1, c.shift), bias(random({c.width}), c.shift);
    Buffer y({c.rows, c.width}, type(), c.shift), sum({c.rows, c.width}, type(), c.shift),
        mean({c.rows}, at::kFloat), reciprocal({c.rows}, at::kFloat);
    // A few numbers may all be close to their mean; then only epsilon keeps rounding small.
    const float epsilon = c.width < 10 ? 0.1F : 1e-3F;
    auto arguments = [&](const Buffer& to, const Buffer& sum_to, const Buffer& mean_to, const Buffer& r_to) {
      return NormRows{.x = x.data(),
                      .residual = c.with_residual ? residual.data() : nullptr,
                      .sum = c.with_residual ? sum_to.data() : nullptr,
                      .weight = weight.data(),
                      .bias = bias.data(),
                      .y = to.data(),
                      .mean = mean_to.data<float>(),
                      .reciprocal = r_to.data<float>(),
                      .rows = c.rows,
                      .width = c.width,
                      .epsilon = epsilon};
    };
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&y, &sum, &mean, &reciprocal}, [&](const EmulatedLaunch& launch) {
        layer_norm<T>(launch, arguments(y, sum, mean, reciprocal));
      });
    });

    const at::Tensor normed =
        c.with_residual ? (x.in_double() + residual.in_double()).to(type()) : x.values();
    EXPECT_TRUE(!c.with_residual || have_equal_bits(sum.values(), normed));
    const at::Tensor X = normed.to(at::kDouble), centred = X - X.mean(-1, true);
    const at::Tensor r = (centred.square().mean(-1, true) + static_cast<double>(epsilon)).rsqrt();
    expect_near(y.values(), centred * r * weight.in_double() + bias.in_double(), "y");
    expect_near(mean.values(), X.mean(-1), "mean");
    expect_near(reciprocal.values(), r.flatten(), "reciprocal");

    Buffer cpu_y({c.rows, c.width}, type()), cpu_sum({c.rows, c.width}, type()),
        cpu_mean({c.rows}, at::kFloat), cpu_r({c.rows}, at::kFloat);
    cpu_row_kernels(element()).layer_norm(arguments(cpu_y, cpu_sum, cpu_mean, cpu_r));
    expect_near(y.values(), cpu_y.values(), "y of the CPU");
  }
}

TEST_P(CudaNorms, LayerNormBackwardIsThatOfTheFormulaAndOfTheCpu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(text_of(c));
    const RowParts parts = parts_of(c);
    const Buffer x(random({c.rows, c.width}), c.shift), dy(random({c.rows, c.width}), c.shift),
        dsum(random({c.rows, c.width}), c.shift), weight(random({c.width}) + 1, c.shift);
    at::Tensor X = x.in_double().requires_grad_(), W = weight.in_double().requires_grad_();
    const at::Tensor centred = X - X.mean(-1, true);
    const at::Tensor r = (centred.square().mean(-1, true) + (c.width < 10 ? 0.1 : kEpsilon)).rsqrt();
    (centred * r * W).backward(dy.in_double());
    const Buffer mean(X.detach().mean(-1).to(at::kFloat)), reciprocal(r.detach().flatten().to(at::kFloat));
    Buffer dx({c.rows, c.width}, type(), c.shift), weight_sums({parts.count(), c.width}, at::kFloat),
        bias_sums({parts.count(), c.width}, at::kFloat);
    auto arguments = [&](const Buffer& to, const Buffer& weight_to, const Buffer& bias_to) {
      return NormGradRows{.dy = dy.data(),
                          .x = x.data(),
                          .weight = weight.data(),
                          .mean = mean.data<float>(),
                          .reciprocal = reciprocal.data<float>(),
                          .dsum = c.with_residual ? dsum.data() : nullptr,
                          .dx = to.data(),
                          .dweight = weight_to.data<float>(),
                          .dbias = bias_to.data<float>(),
                          .rows = c.rows,
                          .width = c.width};
    };
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&dx, &weight_sums, &bias_sums}, [&](const EmulatedLaunch& launch) {
        layer_norm_backward<T>(launch, arguments(dx, weight_sums, bias_sums), parts);
      });
    });
    expect_near(dx.values(), c.with_residual ? X.grad() + dsum.in_double() : X.grad(), "dx");
    expect_near(total_of(weight_sums), W.grad(), "dweight", 1e-5);
    expect_near(total_of(bias_sums), dy.in_double().sum(0), "dbias", 1e-5);

    Buffer cpu_dx({c.rows, c.width}, type()), cpu_weight(at::zeros({parts.count(), c.width})),
        cpu_bias(at::zeros({parts.count(), c.width}));
    cpu_row_kernels(element()).layer_norm_backward(arguments(cpu_dx, cpu_weight, cpu_bias), parts);
    expect_near(weight_sums.values(), cpu_weight.values(), "weight's sums of the CPU", 1e-5);
    expect_near(bias_sums.values(), cpu_bias.values(), "bias's sums of the CPU", 1e-5);
  }
}

}  // namespace
}  // namespace fsdp::kernels::cuda
