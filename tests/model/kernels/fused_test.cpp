// The fused kernels against the same formulas composed of libtorch's operations, in double precision.

#include "model/kernels/fused.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "base/util/error.h"
#include "model/kernels/reduce.h"
#include "support/counting_allocator.h"

namespace fsdp::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Formula = std::function<Tensors(const Tensors& inputs)>;

at::Tensor random(at::IntArrayRef shape, double scale = 1) {
  return at::randn(shape, at::TensorOptions().dtype(at::kDouble)) * scale;
}

/// Outputs and gradients of the inputs, for random gradients of the outputs.
Tensors run(const Formula& formula, const Tensors& inputs, const Tensors& output_gradients) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_(true));
  Tensors outputs = formula(leaves), results;
  Tensors gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    gradients.push_back(output_gradients[i].to(outputs[i].scalar_type()));
    results.push_back(outputs[i].detach().clone());
  }
  for (at::Tensor& gradient : torch::autograd::grad(outputs, leaves, gradients)) results.push_back(gradient);
  return results;
}

/// Multiples of 1/8 whose sums are exact in bf16, so that rounding does not change a sum.
at::Tensor exact_values(at::IntArrayRef shape) { return random(shape, 4).round() / 8; }

struct Setting {
  at::ScalarType type;
  double tolerance;  ///< of the largest value
  int threads;
};

class Fused : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    threads_before_ = at::get_num_threads();
    at::set_num_threads(GetParam().threads);
    at::manual_seed(5);
  }
  void TearDown() override { at::set_num_threads(threads_before_); }

  /// `inputs` are in double precision; both sides get them rounded to the type.
  void expect_equal(const Formula& fused, const Formula& composed, const Tensors& inputs,
                    const Tensors& output_gradients) const {
    Tensors low, high, gradients;
    for (const at::Tensor& input : inputs) {
      low.push_back(input.to(GetParam().type));
      high.push_back(low.back().to(at::kDouble));
    }
    for (const at::Tensor& gradient : output_gradients) {
      gradients.push_back(gradient.to(GetParam().type).to(at::kDouble));
    }
    const Tensors ours = run(fused, low, gradients), expected = run(composed, high, gradients);
    ASSERT_EQ(ours.size(), expected.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].sizes(), expected[i].sizes()) << i;
      const double error = (ours[i].to(at::kDouble) - expected[i]).abs().max().item<double>();
      EXPECT_LE(error, GetParam().tolerance * (expected[i].abs().max().item<double>() + 1e-3))
          << "result " << i;
    }
  }

 private:
  int threads_before_ = 1;
};

INSTANTIATE_TEST_SUITE_P(Types, Fused,
                         ::testing::Values(Setting{at::kFloat, 3e-6, 1}, Setting{at::kFloat, 3e-6, 3},
                                           Setting{at::kBFloat16, 1.2e-2, 1}, Setting{at::kHalf, 2e-3, 1}),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param.type)) + "On" +
                                  std::to_string(info.param.threads);
                         });

at::Tensor composed_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.square().mean(-1, true) + 1e-5).rsqrt() * weight;
}

TEST_P(Fused, RmsNormIsThatOfTheFormula) {
  for (int64_t width : {1, 7, 64, 257, 1000}) {
    const Tensors inputs{random({3, 41, width}), random({width}) + 1};
    expect_equal([](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; },
                 [](const Tensors& in) { return Tensors{composed_norm(in[0], in[1])}; }, inputs,
                 {random({3, 41, width})});
  }
}

TEST_P(Fused, AddRmsNormGivesSumAndNorm) {
  for (int64_t width : {5, 192}) {
    const Tensors inputs{random({67, width}), random({67, width}), random({width}) + 1};
    expect_equal(
        [](const Tensors& in) {
          auto [sum, normed] = add_rms_norm(in[0], in[1], in[2], 1e-5);
          return Tensors{sum, normed};
        },
        [](const Tensors& in) {
          at::Tensor sum = in[0] + in[1];
          return Tensors{sum, composed_norm(sum, in[2])};
        },
        inputs, {random({67, width}), random({67, width})});
  }
}

TEST_P(Fused, NormsThatPassTheirInputOnAddItsOtherGradient) {
  for (int64_t width : {5, 192}) {
    const Tensors inputs{random({67, width}), random({width}) + 1, random({width})};
    const Tensors gradients{random({67, width}), random({67, width})};
    expect_equal(
        [](const Tensors& in) {
          const auto [x, normed] = rms_norm_beside(in[0], in[1], 1e-5);
          return Tensors{x * in[2], normed};
        },
        [](const Tensors& in) {
          return Tensors{in[0] * in[2], composed_norm(in[0], in[1])};
        },
        inputs, gradients);
    expect_equal(
        [](const Tensors& in) {
          const auto [x, normed] = layer_norm_beside(in[0], in[1], in[2], 1e-5);
          return Tensors{x * in[2], normed};
        },
        [](const Tensors& in) {
          return Tensors{in[0] * in[2], at::layer_norm(in[0], {in[1].size(0)}, in[1], in[2], 1e-5)};
        },
        inputs, gradients);
  }
}

TEST(Norms, ThatPassTheirInputOnMakeNoAdditionOfGradients) {
  const at::Tensor x = at::randn({4, 8}).requires_grad_(), weight = at::ones({8});
  const auto [same, normed] = rms_norm_beside(x, weight, 1e-5);
  EXPECT_TRUE(same.is_alias_of(x));
  EXPECT_EQ(same.grad_fn().get(), normed.grad_fn().get());  // the only user of x
}

TEST_P(Fused, AddRmsNormNeedsNoGradientOfTheNorm) {
  const Tensors inputs{random({6, 5}), random({6, 5})};
  auto formula = [](const Tensors& in) {
    at::Tensor weight = at::ones({5}, in[0].options().requires_grad(false));
    return in[0].scalar_type() == at::kDouble ? Tensors{in[0] + in[1]}
                                              : Tensors{add_rms_norm(in[0], in[1], weight, 1e-5).first};
  };
  expect_equal(formula, formula, inputs, {random({6, 5})});
}

at::Tensor composed_layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               double epsilon = 1e-5) {
  const at::Tensor centred = x - x.mean(-1, true);
  return centred * (centred.square().mean(-1, true) + epsilon).rsqrt() * weight + bias;
}

TEST_P(Fused, LayerNormIsThatOfTheFormula) {
  for (int64_t width : {3, 7, 65, 257, 1000}) {
    // A few numbers may all be close to their mean; then only epsilon keeps rounding small.
    const double epsilon = width < 10 ? 0.1 : 1e-5;
    const Tensors inputs{random({3, 41, width}) + 2, random({width}) + 1, random({width})};
    expect_equal(
        [&](const Tensors& in) { return Tensors{layer_norm(in[0], in[1], in[2], epsilon)}; },
        [&](const Tensors& in) { return Tensors{composed_layer_norm(in[0], in[1], in[2], epsilon)}; }, inputs,
        {random({3, 41, width})});
  }
}

TEST_P(Fused, LayerNormOfOneNumberIsTheBias) {
  at::Tensor x = random({50, 1}).to(GetParam().type).requires_grad_();
  at::Tensor weight = at::ones({1}, x.options()).requires_grad_(),
             bias = (0.3 * weight).detach().requires_grad_();
  const at::Tensor y = layer_norm(x, weight, bias, 1e-2), dy = random({50, 1}).to(GetParam().type);
  EXPECT_TRUE(y.equal(bias.expand({50, 1})));
  y.backward(dy);
  EXPECT_LT(x.grad().abs().max().item<double>(), 1e-5);
  EXPECT_EQ(weight.grad().item<double>(), 0);
  EXPECT_NEAR(bias.grad().item<double>(), dy.to(at::kDouble).sum().item<double>(), GetParam().tolerance * 50);
}

TEST_P(Fused, AddLayerNormGivesSumAndNorm) {
  for (int64_t width : {3, 65, 192}) {
    const Tensors inputs{exact_values({67, width}), exact_values({67, width}), random({width}) + 1,
                         random({width})};
    expect_equal(
        [](const Tensors& in) {
          auto [sum, normed] = add_layer_norm(in[0], in[1], in[2], in[3], 1e-5);
          return Tensors{sum, normed};
        },
        [](const Tensors& in) {
          at::Tensor sum = in[0] + in[1];
          return Tensors{sum, composed_layer_norm(sum, in[2], in[3])};
        },
        inputs, {random({67, width}), random({67, width})});
  }
}

TEST_P(Fused, AddLayerNormNeedsNoGradientOfTheNorm) {
  auto formula = [](const Tensors& in) {
    const at::Tensor weight = at::ones({5}, in[0].options().requires_grad(false));
    return in[0].scalar_type() == at::kDouble
               ? Tensors{in[0] + in[1]}
               : Tensors{add_layer_norm(in[0], in[1], weight, weight, 1e-5).first};
  };
  expect_equal(formula, formula, {random({6, 5}), random({6, 5})}, {random({6, 5})});
}

TEST_P(Fused, AddLayerNormNeedsNoGradientOfTheSum) {
  expect_equal(
      [](const Tensors& in) { return Tensors{add_layer_norm(in[0], in[1], in[2], in[3], 1e-5).second}; },
      [](const Tensors& in) { return Tensors{composed_layer_norm(in[0] + in[1], in[2], in[3])}; },
      {exact_values({6, 5}), exact_values({6, 5}), random({5}), random({5})}, {random({6, 5})});
}

// Values so far from zero that fp32 sums of their squares would lose the deviations.
TEST(LayerNorm, OfRowsFarFromZeroKeepsItsDigits) {
  at::manual_seed(8);
  const at::Tensor x = (random({5, 4001}) + 4096).to(at::kFloat);
  const at::Tensor ones = at::ones({4001}), zeros = at::zeros({4001});
  const at::Tensor exact = composed_layer_norm(x.to(at::kDouble), ones, zeros);
  // The mean itself is rounded to 2^-12.
  EXPECT_LT((layer_norm(x, ones, zeros, 1e-5) - exact).abs().max().item<double>(), 3e-4);
}

TEST_P(Fused, BiasGeluIsTheTanhFormOfTheSum) {
  for (int64_t width : {1, 3, 65, 1376}) {
    expect_equal([](const Tensors& in) { return Tensors{bias_gelu(in[0], in[1])}; },
                 [](const Tensors& in) { return Tensors{at::gelu(in[0] + in[1], "tanh")}; },
                 {random({2, 20, width}, 3), random({width})}, {random({2, 20, width})});
  }
}

TEST_P(Fused, BiasGeluStaysFiniteForLargeInputs) {
  const auto options = at::TensorOptions().dtype(GetParam().type);
  const double large = GetParam().type == at::kHalf ? 6e4 : 1e30;
  at::Tensor x = at::tensor({-large, -100.0, -17.0, 0.0, 17.0, large}).to(GetParam().type);
  x = x.unsqueeze(0).requires_grad_(true);
  at::Tensor y = bias_gelu(x, at::zeros({6}, options));
  y.sum().backward();
  const at::Tensor high = x.detach().to(at::kDouble);
  EXPECT_TRUE(at::allclose(y.detach().to(at::kDouble), high.clamp_min(0), 1e-6, 1e-7 * large)) << y;
  EXPECT_TRUE(at::allclose(y.detach().to(at::kDouble).narrow(1, 1, 4), high.narrow(1, 1, 4).clamp_min(0),
                           1e-6, 1e-30))
      << y;
  const at::Tensor slopes = at::tensor({0.0, 0.0, 0.0, 0.5, 1.0, 1.0}, at::kDouble).unsqueeze(0);
  EXPECT_TRUE(at::allclose(x.grad().to(at::kDouble), slopes, 1e-6, 1e-6)) << x.grad();
}

TEST_P(Fused, SumsOverRowsDoNotDependOnThreads) {
  const int64_t rows = 1000, width = 385;
  auto cast = [](const at::Tensor& x) { return x.to(GetParam().type); };
  const Tensors inputs{cast(random({rows, width})), cast(random({width})), cast(random({width}))};
  const at::Tensor dy = cast(random({rows, width}));
  auto results = [&](int threads) {
    at::set_num_threads(threads);
    Tensors all;
    for (const Formula& formula :
         {Formula([](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-5) + 0 * in[2]}; }),
          Formula([](const Tensors& in) { return Tensors{layer_norm(in[0], in[1], in[2], 1e-5)}; }),
          Formula([](const Tensors& in) { return Tensors{bias_gelu(in[0], in[1]) + 0 * in[2]}; })}) {
      for (at::Tensor& result : run(formula, inputs, {dy})) all.push_back(result);
    }
    all.push_back(gradient_of_bias(dy, inputs[1].detach().requires_grad_(true)));
    return all;
  };
  const Tensors expected = results(1);
  for (int threads : {2, 3, 5}) {
    const Tensors found = results(threads);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i << " " << threads;
  }
}

TEST(FusedKernels, OfNoRowsGivesZeroGradients) {
  at::Tensor x = at::empty({0, 5}).requires_grad_(true), w = at::ones({5}).requires_grad_(true);
  (layer_norm(x, w, w, 1e-5) + bias_gelu(x, w)).sum().backward();
  EXPECT_TRUE(w.grad().equal(at::zeros({5})));
}

TEST_P(Fused, RotaryTurnsPairsOfHalves) {
  const int64_t tokens = 9;
  for (int64_t head_dim : {2, 6, 64}) {
    at::Tensor half = at::outer(at::arange(tokens, at::kFloat), at::rand({head_dim / 2}));
    at::Tensor angles = at::cat({half, half}, -1), cos = angles.cos(), sin = angles.sin();
    expect_equal([&](const Tensors& in) { return Tensors{rotary(in[0], cos, sin)}; },
                 [&](const Tensors& in) {
                   at::Tensor x = in[0];
                   at::Tensor turned = at::cat(
                       {-x.narrow(-1, head_dim / 2, head_dim / 2), x.narrow(-1, 0, head_dim / 2)}, -1);
                   at::Tensor c = cos.to(at::kDouble).unsqueeze(1), s = sin.to(at::kDouble).unsqueeze(1);
                   return Tensors{x * c + turned * s};
                 },
                 {random({2, tokens, 3, head_dim})}, {random({2, tokens, 3, head_dim})});
  }
}

TEST_P(Fused, SwiGluIsSiluTimesUp) {
  for (int64_t width : {1, 33, 1376}) {
    expect_equal([](const Tensors& in) { return Tensors{swiglu(in[0], in[1])}; },
                 [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; },
                 {random({40, width}, 4), random({40, width})}, {random({40, width})});
  }
}

TEST_P(Fused, SwiGluStaysFiniteForLargeInputs) {
  const auto options = at::TensorOptions().dtype(GetParam().type);
  at::Tensor gate = at::tensor({-1e4, -90.0, 0.0, 90.0, 1e4}).to(GetParam().type).requires_grad_(true);
  at::Tensor up = at::ones({5}, options);
  at::Tensor y = swiglu(gate, up);
  y.sum().backward();
  const at::Tensor expected = at::tensor({0.0, 0.0, 0.0, 90.0, 1e4}).to(GetParam().type);
  EXPECT_TRUE(at::allclose(y, expected, 1e-2, 1e-6)) << y;
  EXPECT_TRUE(at::isfinite(gate.grad()).all().item<bool>());
}

TEST_P(Fused, LinearCrossEntropyIsTheMeanLossOfTheProduct) {
  for (int64_t rows : {31, 9}) {  // more than columns, and fewer
    for (int64_t vocabulary : {2, 17, 5000}) {
      const at::Tensor targets = at::randint(vocabulary, {rows}, at::TensorOptions().dtype(at::kLong));
      expect_equal(
          [&](const Tensors& in) {
            return Tensors{linear_cross_entropy(in[0], in[1], targets, Matmul::kOneDnn)};
          },
          [&](const Tensors& in) {
            return Tensors{at::cross_entropy_loss(at::linear(in[0], in[1]), targets)};
          },
          {random({rows, 24}), random({vocabulary, 24}, 0.3)}, {at::scalar_tensor(0.5, at::kDouble)});
    }
  }
}

TEST_P(Fused, LinearCrossEntropyHasItsTerms) {
  const at::Tensor targets = at::randint(17, {31}, at::TensorOptions().dtype(at::kLong));
  targets[5] = targets[20] = kIgnored;
  for (const LossTerms terms : {LossTerms{.label_smoothing = 0.1}, LossTerms{.z_loss = 0.01},
                                LossTerms{.label_smoothing = 0.3, .z_loss = 0.05}}) {
    expect_equal(
        [&](const Tensors& in) {
          return Tensors{linear_cross_entropy(in[0], in[1], targets, Matmul::kOneDnn, terms)};
        },
        [&](const Tensors& in) {
          const at::Tensor logits = at::linear(in[0], in[1]), counts = targets != kIgnored;
          const at::Tensor squares = at::logsumexp(logits, -1).square().masked_select(counts);
          return Tensors{at::cross_entropy_loss(logits, targets, {}, at::Reduction::Mean, kIgnored,
                                                terms.label_smoothing) +
                         terms.z_loss * squares.mean()};
        },
        {random({31, 24}), random({17, 24}, 0.3)}, {at::scalar_tensor(0.5, at::kDouble)});
  }
}

TEST(LinearCrossEntropy, OfManyChunksIsThatOfOne) {
  at::manual_seed(6);
  const int64_t vocabulary = 1 << 16, rows = 600;
  ASSERT_LT(cross_entropy_chunk_rows(rows, vocabulary), rows / 2);
  const at::Tensor targets = at::randint(vocabulary, {rows}, at::TensorOptions().dtype(at::kLong));
  at::Tensor x = at::randn({rows, 8}).requires_grad_(true), weight = at::randn({vocabulary, 8});
  weight.requires_grad_(true);
  at::Tensor ours = linear_cross_entropy(x, weight, targets, Matmul::kMkl);
  const auto gradients = torch::autograd::grad({ours}, {x, weight});
  at::Tensor expected = at::cross_entropy_loss(at::linear(x, weight), targets);
  const auto expected_gradients = torch::autograd::grad({expected}, {x, weight});
  EXPECT_NEAR(ours.item<double>(), expected.item<double>(), 1e-5);
  for (int i : {0, 1}) {
    const double largest = expected_gradients[i].abs().max().item<double>();
    EXPECT_TRUE(at::allclose(gradients[i], expected_gradients[i], 1e-4, 1e-5 * largest)) << i;
  }
}

TEST(LinearCrossEntropy, OfFewerTokensThanTheWeightIsWideTakesNoMemoryForItsGradientInForward) {
  const int64_t vocabulary = 1 << 19, rows = 48, width = 64;
  ASSERT_LT(cross_entropy_chunk_rows(rows, vocabulary), rows);
  const at::Tensor x = at::randn({rows, width}).requires_grad_(true),
                   weight = at::randn({vocabulary, width}).requires_grad_(true),
                   targets = at::zeros({rows}, at::kLong);
  const testing::CountingAllocator::Scope memory;
  const at::Tensor loss = linear_cross_entropy(x, weight, targets, Matmul::kMkl);
  EXPECT_LT(memory.peak_bytes(), static_cast<int64_t>(weight.nbytes()));
}

TEST(LinearCrossEntropy, MakesNoGradientOfAFrozenWeight) {
  const int64_t vocabulary = 1 << 14, width = 64, rows = 4;
  const at::Tensor targets = at::arange(rows), weight = at::randn({vocabulary, width});
  const at::Tensor x = at::randn({rows, width}).requires_grad_(true);
  const auto peak = [&] {
    const testing::CountingAllocator::Scope memory;
    linear_cross_entropy(x, weight, targets, Matmul::kMkl).backward();
    return memory.peak_bytes();
  };
  EXPECT_LT(peak(), static_cast<int64_t>(weight.nbytes()) / 2);
  const at::Tensor frozen = x.grad().clone();
  x.mutable_grad().reset();
  weight.requires_grad_(true);
  EXPECT_GT(peak(), static_cast<int64_t>(weight.nbytes()));
  EXPECT_TRUE(at::equal(x.grad(), frozen));
}

TEST(LinearCrossEntropy, OfFewRowsKeepsTheirLogitsInPlaceOfAGradientOfTheWeight) {
  const int64_t vocabulary = 1 << 14, width = 64;
  const at::Tensor weight = at::randn({vocabulary, width}).requires_grad_(true);
  for (int64_t rows : {4L, width}) {
    const at::Tensor targets = at::arange(rows), x = at::randn({rows, width}).requires_grad_(true);
    const testing::CountingAllocator::Scope memory;
    const at::Tensor loss = linear_cross_entropy(x, weight, targets, Matmul::kMkl);
    const auto of_weight = static_cast<int64_t>(weight.nbytes());
    if (rows < width) {
      EXPECT_LT(memory.peak_bytes(), of_weight / 2);
    } else {
      EXPECT_GT(memory.peak_bytes(), of_weight);
    }
    loss.backward();
    EXPECT_GT(memory.peak_bytes(), of_weight);
  }
}

/// The error of the gradients in fp16 of a mean over many rows, as a share of the largest.
double error_in_half(double expected_gradient, double loss_scale) {
  at::manual_seed(8);
  const int64_t vocabulary = 40;
  const at::Tensor targets = at::randint(vocabulary, {100'000}, at::TensorOptions().dtype(at::kLong));
  const at::Tensor x = at::randn({100'000, 8}).to(at::kHalf).requires_grad_(true),
                   weight = at::randn({vocabulary, 8}).to(at::kHalf).requires_grad_(true);
  const at::Tensor loss =
      linear_cross_entropy(x, weight, targets, Matmul::kMkl, {.expected_gradient = expected_gradient});
  const auto gradients = torch::autograd::grad({loss * loss_scale}, {x, weight});
  const Tensors exact{x.detach().to(at::kDouble).requires_grad_(true),
                      weight.detach().to(at::kDouble).requires_grad_(true)};
  const auto expected =
      torch::autograd::grad({at::cross_entropy_loss(at::linear(exact[0], exact[1]), targets)}, exact);
  double error = 0;
  for (size_t i = 0; i < 2; ++i) {
    const at::Tensor difference = gradients[i].to(at::kDouble) / loss_scale - expected[i];
    error = std::max(error, (difference.abs().max() / expected[i].abs().max()).item<double>());
  }
  return error;
}

TEST(LinearCrossEntropy, RoundsGradientsWithTheExpectedLossScale) {
  EXPECT_LT(error_in_half(4096, 4096), 2e-3);
  EXPECT_LT(error_in_half(2048, 4096), 2e-3);  // another one than expected
  EXPECT_GT(error_in_half(1, 4096), 5e-3);     // what a scale is for
}

TEST(LinearCrossEntropy, LeavesIgnoredRowsOut) {
  at::manual_seed(7);
  at::Tensor x = at::randn({4, 3}).requires_grad_(true), weight = at::randn({5, 3});
  const at::Tensor targets = at::tensor({1, -100, 4, -100}, at::kLong);
  linear_cross_entropy(x, weight, targets, Matmul::kMkl).backward();
  at::Tensor same = x.detach().clone().requires_grad_(true);
  at::cross_entropy_loss(at::linear(same, weight), targets).backward();
  EXPECT_TRUE(at::allclose(x.grad(), same.grad(), 1e-5, 1e-6));
}

TEST(LinearCrossEntropy, WithoutGradModeGivesTheLossAlone) {
  at::NoGradGuard no_grad;
  at::Tensor x = at::randn({4, 3}).requires_grad_(true), weight = at::randn({5, 3});
  const at::Tensor targets = at::zeros({4}, at::kLong);
  const at::Tensor loss = linear_cross_entropy(x, weight, targets, Matmul::kMkl);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_NEAR(loss.item<double>(), at::cross_entropy_loss(at::linear(x, weight), targets).item<double>(),
              1e-6);
}

TEST(LinearCrossEntropy, RefusesTargetsBeyondTheVocabulary) {
  for (int64_t token : {-1, 5}) {
    EXPECT_THROW(linear_cross_entropy(at::zeros({1, 3}), at::zeros({5, 3}), at::full({1}, token, at::kLong),
                                      Matmul::kMkl),
                 util::Error);
  }
}

TEST(CanFuse, KnowsTypes) {
  EXPECT_TRUE(can_fuse(at::zeros({1})));
  EXPECT_TRUE(can_fuse(at::zeros({1}, at::kBFloat16)));
  EXPECT_TRUE(can_fuse(at::zeros({1}, at::kHalf)));
  EXPECT_FALSE(can_fuse(at::zeros({1}, at::kDouble)));
}

}  // namespace
}  // namespace fsdp::kernels
