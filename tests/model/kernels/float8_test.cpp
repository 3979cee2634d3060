#include "model/kernels/float8.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "support/gradient_sinks.h"
#include "support/source_folder.h"

namespace fsdp::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor in_double(const Float8Matrix& matrix) {
  return matrix.values.to(at::kDouble) * matrix.inverse_scale.to(at::kDouble);
}

/// The formula of the rounding, in double precision except for the multiplication in fp32.
at::Tensor rounded(const at::Tensor& x, at::ScalarType type) {
  const double most = type == at::kFloat8_e4m3fn ? 448 : 57344;
  const double largest = std::max(x.to(at::kDouble).abs().max().item<double>(), 1e-12);
  const auto scale = static_cast<float>(most / largest);
  return (x.to(at::kFloat) * scale).clamp(-most, most).to(type).to(at::kDouble) / double{scale};
}

double float8_error_of(const at::Tensor& ours, const at::Tensor& expected) {
  return ((ours.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

at::Tensor random_bf16(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); }

/// The relative error of rounding a result to bf16.
constexpr double kRounding = 1.0 / 256;

TEST(Float8, RoundsToNumbersOfTheTypeWhoseLargestStandsForTheLargestMagnitude) {
  at::manual_seed(1);
  for (auto [type, most, bits] : {std::tuple{at::kFloat8_e4m3fn, 448.0, 3}, {at::kFloat8_e5m2, 57344.0, 2}}) {
    for (double size : {1e-9, 1.0, 3e8}) {
      const at::Tensor x = (at::randn({32, 48}) * size).to(at::kBFloat16);
      const Float8Matrix x8 = to_float8(x, largest_magnitude(x), type, {.values = true, .transposed = true});
      EXPECT_EQ(x8.values.scalar_type(), type);
      EXPECT_EQ(x8.values.to(at::kFloat).abs().max().item<double>(), most);
      EXPECT_TRUE(x8.transposed.is_contiguous());
      EXPECT_TRUE(at::equal(x8.transposed.to(at::kFloat).t(), x8.values.to(at::kFloat)));
      EXPECT_LT(float8_error_of(in_double(x8), rounded(x, type)), 1e-6);
      // Half of the distance to the next number, relative to the number, for all but the smallest.
      const at::Tensor X = x.to(at::kDouble), large = X.abs() > X.abs().max() / 4096;
      EXPECT_LE(((in_double(x8) - X) / X).masked_select(large).abs().max().item<double>(),
                1.0 / (2 << bits) + 1e-6);
    }
  }
}

TEST(Float8, KeepsZerosAndWhatIsNotFinite) {
  for (at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    auto of = [&](const at::Tensor& x) { return to_float8(x, largest_magnitude(x), type, {}); };
    const Float8Matrix zeros = of(at::zeros({16, 16}, at::kBFloat16));
    EXPECT_TRUE(in_double(zeros).eq(0).all().item<bool>());
    EXPECT_TRUE(zeros.inverse_scale.isfinite().item<bool>());
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
      at::Tensor x = at::ones({16, 16}, at::kBFloat16);
      x[3][5] = bad;
      EXPECT_FALSE(in_double(of(x)).isfinite().all().item<bool>()) << bad;
    }
  }
}

TEST(Float8, ProductsAndTheirGradientsAreThoseOfTheRoundedFactors) {
  at::manual_seed(2);
  for (Matmul matmul : {Matmul::kMkl, Matmul::kOneDnn}) {
    const at::Tensor x = random_bf16({2, 40, 64}).requires_grad_();
    const std::vector<at::Tensor> weights{random_bf16({32, 64}).requires_grad_(),
                                          random_bf16({48, 64}).requires_grad_()};
    const std::vector<at::Tensor> dys{random_bf16({2, 40, 32}), random_bf16({2, 40, 48}) * 1e-3};
    const auto ys = float8_linears(x, weights, {.matmul = matmul});
    const auto gradients = torch::autograd::grad(ys, {x, weights[0], weights[1]}, dys);
    const at::Tensor X = rounded(x.detach().view({80, 64}), at::kFloat8_e4m3fn);
    at::Tensor dx = at::zeros({80, 64}, at::kDouble);
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor W = rounded(weights[i].detach(), at::kFloat8_e4m3fn),
                       D = rounded(dys[i].flatten(0, 1), at::kFloat8_e5m2);
      EXPECT_EQ(ys[i].sizes(), dys[i].sizes());
      EXPECT_EQ(ys[i].scalar_type(), at::kBFloat16);
      EXPECT_LT(float8_error_of(ys[i].flatten(0, 1), at::mm(X, W.t())), kRounding);
      EXPECT_LT(float8_error_of(gradients[i + 1], at::mm(D.t(), X)), kRounding);
      dx += at::mm(D, W);
    }
    EXPECT_LT(float8_error_of(gradients[0].flatten(0, 1), dx), 3 * kRounding);
  }
}

/// The formula of the rounding by rows, in double precision. dim: 1 for rows, 0 for columns
at::Tensor rounded_by_rows(const at::Tensor& x, int64_t dim) {
  const at::Tensor largest = x.to(at::kDouble).abs().amax({dim}, /*keepdim=*/true).clamp_min(1e-12),
                   scale = at::exp2((448 / largest).log2().floor());
  return (x.to(at::kDouble) * scale).to(at::kFloat).to(at::kFloat8_e4m3fn).to(at::kDouble) / scale;
}

/// Numbers of so different sizes in each row and column that e4m3 does not have all of them at one scale;
/// exact in bf16. As in float8_linear.py.
at::Tensor uneven(int64_t rows, int64_t columns, int64_t seed) {
  const at::Tensor i = at::arange(rows * columns), row = i.div(columns, "floor"), column = i % columns;
  const at::Tensor share = ((i * 7919 + seed * 104729) % 255 - 127).to(at::kFloat) / 128,
                   sizes = at::exp2(-3 * ((row * 5 + seed) % 6).to(at::kFloat) -
                                    3 * (column * 3 % 4).to(at::kFloat));
  return (share * sizes).view({rows, columns}).to(at::kBFloat16);
}

TEST(Float8, RoundsEachRowAndEachColumnByItsOwnPowerOfTwo) {
  const at::Tensor x = uneven(32, 48, 1);
  const Float8Matrix x8 = to_float8_by_rows(x, {.values = true, .transposed = true});
  EXPECT_EQ(x8.inverse_scale.sizes(), (at::IntArrayRef{32, 1}));
  EXPECT_EQ(x8.inverse_scale_of_transposed.sizes(), (at::IntArrayRef{48, 1}));
  EXPECT_TRUE(at::equal(in_double(x8), rounded_by_rows(x, 1)));
  EXPECT_TRUE(x8.transposed.is_contiguous());
  EXPECT_TRUE(
      at::equal((x8.transposed.to(at::kDouble) * x8.inverse_scale_of_transposed).t(), rounded_by_rows(x, 0)));
  EXPECT_FALSE(at::equal(rounded_by_rows(x, 0), rounded_by_rows(x, 1)));
  const at::Tensor largest = x8.values.to(at::kFloat).abs().amax({1});
  EXPECT_TRUE((largest.ge(224) & largest.le(448)).all().item<bool>());
}

TEST(Float8, KeepsRowsOfZerosAndWhatIsNotFiniteInItsRow) {
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
    at::Tensor x = at::ones({16, 16}, at::kBFloat16);
    x[3][5] = bad;
    x[4].zero_();
    const at::Tensor values = in_double(to_float8_by_rows(x, {}));
    EXPECT_FALSE(values[3].isfinite().all().item<bool>()) << bad;
    EXPECT_TRUE(values[4].eq(0).all().item<bool>());
    EXPECT_TRUE(values[5].eq(1).all().item<bool>()) << "another row";
  }
}

TEST(Float8, ProductsByRowsAndTheirGradientsAreThoseOfTheRoundedFactors) {
  for (bool transposed : {false, true}) {
    const at::Tensor x = uneven(32, 64, 2).requires_grad_(), dy = uneven(32, 48, 3);
    const at::Tensor weight =
        (transposed ? uneven(48, 64, 1).t().contiguous() : uneven(48, 64, 1)).requires_grad_();
    const Float8Way way{.scaling = Float8Scaling::kRow};
    const at::Tensor y = transposed ? float8_transposed_linear(x, weight, std::nullopt, way)
                                    : float8_linears(x, {weight}, way)[0];
    const auto gradients = torch::autograd::grad({y}, {x, weight}, {dy});
    // What is summed together shares a scale, whichever way the weight lies in memory.
    const at::Tensor X = x.detach(), W = uneven(48, 64, 1);
    const at::Tensor dw = transposed ? gradients[1].t() : gradients[1];
    EXPECT_LT(float8_error_of(y, at::mm(rounded_by_rows(X, 1), rounded_by_rows(W, 1).t())), kRounding);
    EXPECT_LT(float8_error_of(gradients[0], at::mm(rounded_by_rows(dy, 1), rounded_by_rows(W, 0))),
              kRounding);
    EXPECT_LT(float8_error_of(dw, at::mm(rounded_by_rows(dy, 0).t(), rounded_by_rows(X, 0))), kRounding);
  }
}

// The figures are those of float8_linear.py.
TEST(Float8, LinearLayersAreThoseOfTorchao) {
  std::ifstream file(testing::source_folder() + "/tests/model/kernels/float8_linear.txt");
  const auto next_line = [&] {
    std::string line;
    std::getline(file, line);
    std::istringstream words(line);
    return std::vector<float>(std::istream_iterator<float>(words), {});
  };
  for (Float8Scaling scaling : {Float8Scaling::kTensor, Float8Scaling::kRow}) {
    const at::Tensor x = uneven(32, 64, 2).requires_grad_(), weight = uneven(48, 64, 1).requires_grad_();
    const at::Tensor y = float8_linears(x, {weight}, {.scaling = scaling})[0];
    const auto gradients = torch::autograd::grad({y}, {x, weight}, {uneven(32, 48, 3)});
    for (const at::Tensor& ours : {y.detach(), gradients[0], gradients[1]}) {
      const at::Tensor some = ours.flatten().slice(0, 0, ours.numel(), 31).to(at::kFloat),
                       theirs = at::tensor(next_line(), at::kFloat);
      ASSERT_EQ(some.sizes(), theirs.sizes());
      // Both sum in fp32, in other orders, and round to bf16.
      EXPECT_LT(((some - theirs).abs() / theirs.abs().clamp_min(1e-3)).max().item<double>(), 1.0 / 128);
      EXPECT_LT((some - theirs).ne(0).sum().item<int64_t>(), some.numel() / 16 + 1);
    }
  }
}

TEST(Float8, ConsecutiveWeightsAreOneMatrix) {
  for (Float8Scaling scaling : {Float8Scaling::kTensor, Float8Scaling::kRow}) {
    for (bool recomputes : {false, true}) {
      const at::Tensor all = uneven(80, 64, 1), dy = uneven(32, 80, 3);
      const Float8Way way{.scaling = scaling, .kept = recomputes ? KeptInput::kItself : KeptInput::kRounded};
      const std::vector<at::Tensor> parts{all.narrow(0, 0, 32).requires_grad_(),
                                          all.narrow(0, 32, 48).requires_grad_()};
      const at::Tensor whole = all.clone().requires_grad_(), x = uneven(32, 64, 2).requires_grad_();
      const at::Tensor y = float8_joined_linear(x, parts, way), expected = float8_linears(x, {whole}, way)[0];
      EXPECT_TRUE(at::equal(y, expected));
      const auto ours = torch::autograd::grad({y}, {x, parts[0], parts[1]}, {dy});
      const auto theirs = torch::autograd::grad({expected}, {x, whole}, {dy});
      EXPECT_TRUE(at::equal(ours[0], theirs[0]));
      EXPECT_TRUE(at::equal(at::cat({ours[1], ours[2]}), theirs[1]));
    }
  }
}

TEST(Float8, GradientsOfConsecutiveWeightsGoToTheirSinks) {
  for (bool consecutive : {true, false}) {
    const at::Tensor all = uneven(80, 64, 1), dy = uneven(32, 80, 3), x = uneven(32, 64, 2).requires_grad_();
    const std::vector<at::Tensor> parts{all.narrow(0, 0, 32).requires_grad_(),
                                        all.narrow(0, 32, 48).requires_grad_()};
    TestSink &first = TestSink::attach(parts[0]), &second = TestSink::attach(parts[1]);
    const at::Tensor memory = at::zeros({80, 64});
    if (consecutive) {
      first.memory = memory.narrow(0, 0, 32);
      second.memory = memory.narrow(0, 32, 48);
    }
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) float8_joined_linear(x, parts).backward(dy);
    const at::Tensor X = rounded(x.detach(), at::kFloat8_e4m3fn), D = rounded(dy, at::kFloat8_e5m2);
    EXPECT_EQ(first.by_autograd + second.by_autograd, 0);
    EXPECT_LT(float8_error_of(at::cat({first.memory, second.memory}), 2 * at::mm(D.t(), X)), 1e-6);
  }
}

TEST(Float8, ProductsAreNearThoseOfTheFactorsThemselves) {
  at::manual_seed(3);
  const at::Tensor x = random_bf16({128, 256}), weight = random_bf16({64, 256});
  const at::Tensor y = float8_linears(x, {weight})[0];
  const at::Tensor expected = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
  const double error = ((y.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  EXPECT_LT(error, 0.05);
  EXPECT_GT(error, 0.01) << "not rounded to 8 bits?";
}

TEST(Float8, TransposedLinearHasABias) {
  at::manual_seed(4);
  for (bool biased : {true, false}) {
    const at::Tensor x = random_bf16({32, 64}).requires_grad_(),
                     weight = random_bf16({64, 48}).requires_grad_(),
                     bias = random_bf16({48}).requires_grad_(), dy = random_bf16({32, 48});
    const at::Tensor y =
        float8_transposed_linear(x, weight, biased ? std::optional<at::Tensor>(bias) : std::nullopt);
    std::vector<at::Tensor> inputs{x, weight};
    if (biased) inputs.push_back(bias);
    const auto gradients = torch::autograd::grad({y}, inputs, {dy});
    const at::Tensor X = rounded(x.detach(), at::kFloat8_e4m3fn),
                     W = rounded(weight.detach(), at::kFloat8_e4m3fn), D = rounded(dy, at::kFloat8_e5m2);
    const at::Tensor sum = biased ? at::mm(X, W) + bias.detach() : at::mm(X, W);
    EXPECT_LT(float8_error_of(y, sum), kRounding);
    EXPECT_LT(float8_error_of(gradients[0], at::mm(D, W.t())), kRounding);
    EXPECT_LT(float8_error_of(gradients[1], at::mm(X.t(), D)), kRounding);
    if (!biased) continue;
    EXPECT_LT(float8_error_of(gradients[2], dy.to(at::kDouble).sum(0)), kRounding) << "not of dy itself";
  }
}

TEST(Float8, AddsGradientsOfWeightsToTheSink) {
  at::manual_seed(5);
  const at::Tensor x = random_bf16({48, 32}), dy = random_bf16({48, 64});
  const at::Tensor X = rounded(x, at::kFloat8_e4m3fn), D = rounded(dy, at::kFloat8_e5m2);
  for (at::ScalarType sink_type : {at::kFloat, at::kBFloat16}) {
    for (bool transposed : {false, true}) {
      const at::Tensor weight =
          random_bf16(transposed ? at::IntArrayRef{32, 64} : at::IntArrayRef{64, 32}).requires_grad_();
      TestSink& sink = TestSink::attach(weight, sink_type);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const at::Tensor y =
            transposed ? float8_transposed_linear(x, weight, std::nullopt) : float8_linears(x, {weight})[0];
        y.backward(dy);
      }
      EXPECT_EQ(sink.by_autograd, 0);
      EXPECT_LT(float8_error_of(sink.memory, 2 * (transposed ? at::mm(X.t(), D) : at::mm(D.t(), X))),
                sink_type == at::kFloat ? 1e-6 : 2 * kRounding);
    }
  }
}

TEST(Float8, ComputesNoGradientThatNobodyAsksFor) {
  const at::Tensor x = random_bf16({16, 16}).requires_grad_(), weight = random_bf16({16, 16});
  float8_linears(x, {weight, weight.detach().requires_grad_()})[0].sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(Float8, IsForMultiplesOfSixteenInBfloat16) {
  const at::Tensor x = random_bf16({2, 8, 32}), weight = random_bf16({48, 32});
  EXPECT_TRUE(can_multiply_float8(x, weight));
  EXPECT_FALSE(can_multiply_float8(x.narrow(1, 0, 7), weight)) << "rows";
  EXPECT_FALSE(can_multiply_float8(x.narrow(1, 0, 0), weight)) << "no rows";
  EXPECT_FALSE(can_multiply_float8(x, random_bf16({40, 32})));
  EXPECT_FALSE(can_multiply_float8(random_bf16({16, 24}), random_bf16({48, 24})));
  EXPECT_FALSE(can_multiply_float8(x.to(at::kFloat), weight.to(at::kFloat)));
}

TEST(Float8, NeedsAGpuOfTheLastGenerations) {
  for (const char* capability : {"8.9", "9.0", "10.0", "10.3", "12.0"}) {
    EXPECT_TRUE(has_float8_units(capability)) << capability;
  }
  for (const char* capability : {"7.5", "8.0", "8.6", "8.7", "", "8"}) {
    EXPECT_FALSE(has_float8_units(capability)) << capability;
  }
  EXPECT_NO_THROW(require_float8("training.float8", at::kCPU));
}

}  // namespace
}  // namespace fsdp::kernels
