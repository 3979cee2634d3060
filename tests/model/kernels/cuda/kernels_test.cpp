// The kernels on a GPU, through the functions that models call, against double precision and against the CPU.
// emulated_*_test.cpp tests the kernels without a GPU.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "base/device/cuda.h"
#include "model/kernels/adam.h"
#include "model/kernels/device_attention.h"
#include "model/kernels/float8.h"
#include "model/kernels/fused.h"
#include "model/kernels/joined_linear.h"
#include "model/kernels/matmul.h"
#include "model/kernels/reduce.h"
#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Formula = std::function<Tensors(const Tensors& inputs)>;

/// Outputs and gradients of the inputs, in double precision on the CPU, for the given gradients of outputs.
Tensors run(const Formula& formula, const Tensors& inputs, const Tensors& output_gradients) {
  Tensors leaves, gradients, results;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_(true));
  const Tensors outputs = formula(leaves);
  for (size_t i = 0; i < outputs.size(); ++i) {
    gradients.push_back(output_gradients[i].to(outputs[i].options()));
    results.push_back(outputs[i].detach().to(at::kCPU, at::kDouble));
  }
  for (const at::Tensor& gradient : torch::autograd::grad(outputs, leaves, gradients)) {
    results.push_back(gradient.to(at::kCPU, at::kDouble));
  }
  return results;
}

class Cuda : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  static at::ScalarType type() { return GetParam(); }
  static double tolerance() { return type() == at::kFloat ? 5e-6 : 1.2e-2; }
  static at::Tensor random(at::IntArrayRef shape, double scale = 1) {
    return (at::randn(shape, at::kDouble) * scale).to(type());
  }
  static at::Tensor on_gpu(const at::Tensor& x) { return x.to(at::kCUDA); }

  static void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance,
                          const std::string& what) {
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    const at::Tensor f = found.to(at::kCPU, at::kDouble), e = expected.to(at::kCPU, at::kDouble);
    EXPECT_TRUE((f - e).abs().max().item<double>() <= tolerance * (e.abs().max().item<double>() + 1e-3))
        << what;
  }

  /// `fused` on the GPU and on the CPU, and `composed` in double precision.
  static void expect_equal(const Formula& fused, const Formula& composed, const Tensors& inputs,
                           const Tensors& output_gradients) {
    Tensors high, there;
    for (const at::Tensor& input : inputs) {
      high.push_back(input.to(at::kDouble));
      there.push_back(on_gpu(input));
    }
    const Tensors expected = run(composed, high, output_gradients),
                  here = run(fused, inputs, output_gradients), ours = run(fused, there, output_gradients);
    ASSERT_EQ(ours.size(), expected.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      expect_near(ours[i], expected[i], tolerance(), "result " + std::to_string(i));
      expect_near(ours[i], here[i], tolerance(), "that of the CPU, " + std::to_string(i));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Types, Cuda, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

at::Tensor composed_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.square().mean(-1, true) + 1e-5).rsqrt() * weight;
}

at::Tensor composed_layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor centred = x - x.mean(-1, true);
  return centred * (centred.square().mean(-1, true) + 1e-5).rsqrt() * weight + bias;
}

TEST_P(Cuda, RmsNorms) {
  for (int64_t width : {96, 257, 1024, 4096, 8192, 20'000}) {
    SCOPED_TRACE(width);
    // Multiples of 1/8, whose sums are exact in bf16.
    const at::Tensor x = (random({2, 300, width}, 4).round() / 8),
                     residual = (random({2, 300, width}, 4).round() / 8);
    expect_equal([](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; },
                 [](const Tensors& in) { return Tensors{composed_rms_norm(in[0], in[1])}; },
                 {x, random({width}) + 1}, {random({2, 300, width})});
    expect_equal(
        [](const Tensors& in) {
          const auto [same, normed] = rms_norm_beside(in[0], in[1], 1e-5);
          return Tensors{same, normed};
        },
        [](const Tensors& in) {
          return Tensors{in[0] * 1, composed_rms_norm(in[0], in[1])};
        },
        {x, random({width}) + 1}, {random({2, 300, width}), random({2, 300, width})});
    expect_equal(
        [](const Tensors& in) {
          auto [sum, normed] = add_rms_norm(in[0], in[1], in[2], 1e-5);
          return Tensors{sum, normed};
        },
        [](const Tensors& in) {
          return Tensors{in[0] + in[1], composed_rms_norm(in[0] + in[1], in[2])};
        },
        {x, residual, random({width}) + 1}, {random({2, 300, width}), random({2, 300, width})});
  }
}

TEST_P(Cuda, LayerNorms) {
  for (int64_t width : {96, 257, 768, 1600, 8192}) {
    SCOPED_TRACE(width);
    const at::Tensor x = (random({2, 300, width}, 4).round() / 8),
                     residual = (random({2, 300, width}, 4).round() / 8);
    expect_equal([](const Tensors& in) { return Tensors{layer_norm(in[0], in[1], in[2], 1e-5)}; },
                 [](const Tensors& in) { return Tensors{composed_layer_norm(in[0], in[1], in[2])}; },
                 {x, random({width}) + 1, random({width})}, {random({2, 300, width})});
    expect_equal(
        [](const Tensors& in) {
          auto [sum, normed] = add_layer_norm(in[0], in[1], in[2], in[3], 1e-5);
          return Tensors{sum, normed};
        },
        [](const Tensors& in) {
          return Tensors{in[0] + in[1], composed_layer_norm(in[0] + in[1], in[2], in[3])};
        },
        {x, residual, random({width}) + 1, random({width})},
        {random({2, 300, width}), random({2, 300, width})});
  }
}

TEST_P(Cuda, Activations) {
  for (int64_t width : {33, 1376, 4096}) {
    SCOPED_TRACE(width);
    const std::vector<int64_t> shape{2, 200, width};
    expect_equal([](const Tensors& in) { return Tensors{swiglu(in[0], in[1])}; },
                 [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; },
                 {random(shape), random(shape)}, {random(shape)});
    expect_equal([](const Tensors& in) { return Tensors{bias_gelu(in[0], in[1])}; },
                 [](const Tensors& in) { return Tensors{at::gelu(in[0] + in[1], "tanh")}; },
                 {random(shape, 3), random({width})}, {random(shape)});
  }
}

TEST_P(Cuda, Rotary) {
  for (int64_t head_dim : {2, 64, 128}) {
    const at::Tensor half = at::rand({50, head_dim / 2}) * 6, angles = at::cat({half, half}, -1);
    auto turned = [&](const Tensors& in) {
      const at::Tensor& x = in[0];
      if (x.scalar_type() != at::kDouble) {
        return Tensors{rotary(x, angles.cos().to(x.device()), angles.sin().to(x.device()))};
      }
      const at::Tensor other =
          at::cat({-x.narrow(-1, head_dim / 2, head_dim / 2), x.narrow(-1, 0, head_dim / 2)}, -1);
      return Tensors{x * angles.cos().unsqueeze(1) + other * angles.sin().unsqueeze(1)};
    };
    expect_equal(turned, turned, {random({3, 50, 5, head_dim})}, {random({3, 50, 5, head_dim})});
  }
}

TEST_P(Cuda, RotaryAttentionIsAttentionToRotatedHeads) {
  if (type() == at::kFloat) GTEST_SKIP() << "cuDNN and FlashAttention have no fp32";
  constexpr int64_t kTokens = 6, kQueries = 4, kKeys = 2, kDim = 16, kWidth = (kQueries + 2 * kKeys) * kDim;
  const at::Tensor half = at::randn({kTokens, kDim / 2}), angles = at::cat({half, half}, -1);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const at::Tensor qkv = random({2, kTokens, kWidth}), dy = random({2, kTokens, kQueries * kDim});
  const Formula steps = [&](const Tensors& in) {
    const at::Tensor heads = in[0].view({2, kTokens, kQueries + 2 * kKeys, kDim});
    const auto turned = [&](const at::Tensor& x) {
      const at::Tensor c = cos.to(x.scalar_type()).unsqueeze(1), s = sin.to(x.scalar_type()).unsqueeze(1);
      const auto halves = x.chunk(2, -1);
      return x * c + at::cat({-halves[1], halves[0]}, -1) * s;
    };
    const auto repeated = [&](const at::Tensor& x) { return x.repeat_interleave(kQueries / kKeys, 2); };
    const at::Tensor q = turned(heads.narrow(2, 0, kQueries)), k = turned(heads.narrow(2, kQueries, kKeys)),
                     v = heads.narrow(2, kQueries + kKeys, kKeys);
    return Tensors{at::scaled_dot_product_attention(q.transpose(1, 2), repeated(k).transpose(1, 2),
                                                    repeated(v).transpose(1, 2), std::nullopt, 0, true)
                       .transpose(1, 2)
                       .flatten(2)};
  };
  const Formula fused = [&](const Tensors& in) {
    return Tensors{rotary_attention(in[0] * 1, {kQueries, kKeys}, on_gpu(cos), on_gpu(sin))};
  };
  const Tensors found = run(fused, {on_gpu(qkv)}, {dy}), expected = run(steps, {qkv.to(at::kDouble)}, {dy});
  expect_near(found[0], expected[0], 2 * tolerance(), "attention");
  expect_near(found[1], expected[1], 2 * tolerance(), "gradient");
}

TEST_P(Cuda, SplitJoinsGradientsAndComputesTheBiases) {
  constexpr int64_t kHeads = 3;
  for (int64_t dim : {6, 64}) {
    const at::Tensor qkv = random({4, 50, 3 * kHeads * dim}), bias = random({3 * kHeads * dim});
    const Formula split = [&](const Tensors& in) {
      if (in[0].scalar_type() == at::kDouble) {
        Tensors parts = (in[0] + in[1]).unflatten(-1, {-1, dim}).chunk(3, 2);
        return parts;
      }
      const auto [q, k, v] = joined_split(in[0] + in[1].detach(), {kHeads, kHeads}, in[1]);
      return Tensors{q, k, v};
    };
    const at::Tensor dv = random({4, kHeads, 50, dim}).transpose(1, 2);  // heads first in memory
    expect_equal(split, split, {qkv, bias}, {random({4, 50, kHeads, dim}), random({4, 50, kHeads, dim}), dv});
  }
}

TEST_P(Cuda, LinearCrossEntropy) {
  struct Sizes {
    int64_t rows, width, vocabulary;
  };
  // As a loss scaler does: fp16 has no numbers as small as the gradients of improbable tokens.
  const double scale = type() == at::kHalf ? 4096 : 1;
  for (const Sizes& s : std::vector<Sizes>{{37, 24, 101}, {300, 64, 50257}, {6000, 16, 65536}}) {
    for (LossTerms terms : {LossTerms{}, LossTerms{.label_smoothing = 0.1, .z_loss = 1e-3}}) {
      terms.expected_gradient = scale;
      SCOPED_TRACE(s.vocabulary);
      at::Tensor targets = at::randint(s.vocabulary, {s.rows}, at::kLong);
      targets[3] = kIgnored;
      auto loss = [&](const Tensors& in) {
        const at::Tensor target = targets.to(in[0].device());
        if (in[0].scalar_type() != at::kDouble) {
          return Tensors{linear_cross_entropy(in[0], in[1], target, Matmul::kMkl, terms)};
        }
        const at::Tensor logits = at::linear(in[0], in[1]), counts = targets != kIgnored;
        const at::Tensor squares = at::logsumexp(logits, -1).square().masked_fill(~counts, 0);
        return Tensors{at::cross_entropy_loss(logits, targets, {}, at::Reduction::Mean, kIgnored,
                                              terms.label_smoothing) +
                       terms.z_loss * squares.sum() / counts.sum()};
      };
      // Logits of bf16 are rounded before the softmax; so is their gradient.
      const Tensors inputs{random({s.rows, s.width}), random({s.vocabulary, s.width}, 0.2)};
      Tensors high;
      for (const at::Tensor& input : inputs)
        high.push_back(on_gpu(input).to(at::kFloat).cpu().to(at::kDouble));
      const Tensors ours = run(loss, {on_gpu(inputs[0]), on_gpu(inputs[1])}, {at::full({}, 3 * scale)});
      const Tensors expected = run(loss, high, {at::full({}, 3 * scale)});
      for (size_t i = 0; i < ours.size(); ++i) {
        expect_near(ours[i], expected[i], type() == at::kFloat ? 2e-5 : 2e-2, "result " + std::to_string(i));
      }
    }
  }
}

TEST_P(Cuda, ProductsAddTheirWeightsGradientsToTheSink) {
  const at::Tensor x = on_gpu(random({70, 40})), dy = on_gpu(random({70, 24}));
  const at::Tensor X = x.cpu().to(at::kDouble), D = dy.cpu().to(at::kDouble);
  for (at::ScalarType sink_type : {at::kFloat, type()}) {
    for (bool transposed : {false, true}) {
      const at::Tensor weight =
          on_gpu(random(transposed ? at::IntArrayRef{40, 24} : at::IntArrayRef{24, 40})).requires_grad_();
      const at::Tensor bias = on_gpu(random({24})).requires_grad_();
      const TestSink& of_weight = TestSink::attach(weight, sink_type);
      const TestSink& of_bias = TestSink::attach(bias);
      at::Tensor y;
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        y = transposed ? transposed_linear(x, weight, bias, Matmul::kMkl)
                       : linears(x, {weight, weight.detach()}, Matmul::kMkl)[0];
        y.backward(dy);
      }
      EXPECT_EQ(of_weight.by_autograd, 0);
      expect_near(of_weight.memory, 2 * (transposed ? at::mm(X.t(), D) : at::mm(D.t(), X)),
                  sink_type == at::kFloat ? 1e-5 : 1.2e-2, "gradient of the weight");
      const at::Tensor W = weight.detach().cpu().to(at::kDouble);
      if (!transposed) {
        expect_near(y.detach(), at::mm(X, W.t()), tolerance(), "y");
        continue;
      }
      EXPECT_EQ(of_bias.by_autograd, 0);
      expect_near(y.detach(), at::mm(X, W) + bias.detach().cpu().to(at::kDouble), tolerance(), "y");
      expect_near(of_bias.memory, 2 * D.sum(0), 1e-5, "gradient of the bias");
    }
  }
}

TEST_P(Cuda, LinearCrossEntropyAddsTheGradientOfAllRowsToTheSink) {
  constexpr int64_t kRows = 300, kWidth = 24;
  const double scale = type() == at::kHalf ? 4096 : 1;
  for (int64_t vocabulary : {128, 131}) {  // with products of its own for the last tokens
    const at::Tensor x = on_gpu(random({kRows, kWidth})).requires_grad_(),
                     weight = on_gpu(random({vocabulary, kWidth}, 0.3)).requires_grad_();
    const at::Tensor targets = at::randint(vocabulary, {kRows}, at::kLong);
    const TestSink& sink = TestSink::attach(weight);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      linear_cross_entropy(x, weight, targets.to(at::kCUDA), Matmul::kMkl, {.expected_gradient = scale})
          .backward(at::full({}, (1 + micro_batch) * scale, x.options().dtype(at::kFloat)));
      const bool is_rounded = at::equal(sink.memory.to(type()).to(at::kFloat), sink.memory);
      EXPECT_EQ(is_rounded, type() == at::kFloat);
    }
    EXPECT_EQ(sink.by_autograd, 0);
    const at::Tensor W = weight.detach().cpu().to(at::kDouble).requires_grad_();
    at::cross_entropy_loss(at::linear(x.detach().cpu().to(at::kDouble), W), targets).backward();
    // Logits are rounded before the softmax; so is their gradient.
    expect_near(sink.memory / (3 * scale), W.grad(), type() == at::kFloat ? 2e-5 : 2e-2, "gradient");
  }
}

TEST_P(Cuda, LinearCrossEntropyOfManyChunksIsThatOfOne) {
  const at::Tensor x = random({600, 24}), weight = random({320, 24}, 0.3);
  const at::Tensor targets = at::randint(320, {600}, at::kLong).to(at::kCUDA);
  const double scale = type() == at::kHalf ? 4096 : 1;
  const auto with = [&](int64_t bytes) {
    const Formula formula = [&](const Tensors& in) {
      return Tensors{linear_cross_entropy(in[0], in[1], targets, Matmul::kMkl,
                                          {.logits_bytes = bytes, .expected_gradient = scale})};
    };
    return run(formula, {on_gpu(x), on_gpu(weight)}, {at::full({}, scale)});
  };
  const int64_t bytes = 320 * 300 * x.element_size();
  ASSERT_EQ(cross_entropy_chunk_rows(on_gpu(x), 320, bytes), 256);
  const Tensors one = with(kDeviceLogitsBytes), many = with(bytes);
  for (size_t i = 0; i < one.size(); ++i) expect_near(many[i], one[i], tolerance(), std::to_string(i));
}

TEST_P(Cuda, NormsAddTheirSumsToTheSink) {
  const at::Tensor x = on_gpu(random({300, 64})), dy = on_gpu(random({300, 64}));
  const at::Tensor weight = on_gpu(random({64})).requires_grad_(),
                   bias = on_gpu(random({64})).requires_grad_();
  const TestSink &of_weight = TestSink::attach(weight), &of_bias = TestSink::attach(bias);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) layer_norm(x, weight, bias, 1e-5).backward(dy);
  const at::Tensor X = x.cpu().to(at::kDouble), D = dy.cpu().to(at::kDouble), centred = X - X.mean(-1, true);
  EXPECT_EQ(of_weight.by_autograd + of_bias.by_autograd, 0);
  expect_near(of_weight.memory, 2 * (D * centred * (centred.square().mean(-1, true) + 1e-5).rsqrt()).sum(0),
              1e-5, "gradient of the weight");
  expect_near(of_bias.memory, 2 * D.sum(0), 1e-5, "gradient of the bias");
}

TEST_P(Cuda, EmbeddingAddsTheRowsOfEachId) {
  for (int64_t width : {7, 96, 1024}) {
    const at::Tensor ids = at::cat({at::randint(40, {500}, at::kLong), at::full({300}, 7, at::kLong)});
    const at::Tensor dy = random({800, width});
    const at::Tensor expected = at::zeros({50, width}, at::kDouble).index_add(0, ids, dy.to(at::kDouble));
    const at::Tensor weight = on_gpu(random({50, width})).requires_grad_();
    kernels::embedding(weight, on_gpu(ids)).backward(on_gpu(dy));
    expect_near(weight.grad(), expected, tolerance(), "a table of its own");
    at::Tensor(weight).mutable_grad() = at::Tensor();
    const TestSink& sink = TestSink::attach(weight);
    for (int i = 0; i < 2; ++i) kernels::embedding(weight, on_gpu(ids)).backward(on_gpu(dy));
    EXPECT_EQ(sink.by_autograd, 0);
    expect_near(sink.memory, 2 * expected, 1e-5, "added");
    const at::Tensor once = sink.memory.clone();
    TestSink& again = TestSink::attach(weight);
    for (int i = 0; i < 2; ++i) kernels::embedding(weight, on_gpu(ids)).backward(on_gpu(dy));
    EXPECT_TRUE(at::equal(again.memory, once)) << "depends on scheduling";
  }
}

TEST_P(Cuda, DropoutChoosesAsOnTheCpu) {
  for (int64_t width : {1, 7, 4096, 100'003}) {
    const at::Tensor x = random({4, width});
    EXPECT_TRUE(at::equal(dropout(on_gpu(x), 0.3, 11, 100).cpu(), dropout(x, 0.3, 11, 100))) << width;
  }
}

TEST_P(Cuda, AdamStepsAsTheFormulaDoes) {
  for (int64_t n : {1, 1003, 3'000'000}) {
    const at::Tensor gradient = random({n}), value = at::randn({n}), exp_avg = at::randn({n}),
                     exp_avg_sq = at::rand({n});
    const AdamNumbers numbers{.gradient_scale = 0.5F,
                              .beta1 = 0.9F,
                              .one_minus_beta1 = 0.1F,
                              .beta2 = 0.95F,
                              .one_minus_beta2 = 0.05F,
                              .eps = 1e-5F};
    const AdamTensors there{.value = on_gpu(value),
                            .gradient = on_gpu(gradient),
                            .exp_avg = on_gpu(exp_avg),
                            .exp_avg_sq = on_gpu(exp_avg_sq),
                            .copy = on_gpu(at::empty({n}, at::kBFloat16)),
                            .rates = {.keep = 0.99F, .step_size = 0.01F, .second_correction = 0.5F}};
    step_adam({there}, numbers);
    const at::Tensor g = 0.5 * gradient.to(at::kDouble), m = 0.9 * exp_avg.to(at::kDouble) + 0.1 * g,
                     v = 0.95 * exp_avg_sq.to(at::kDouble) + 0.05 * g * g;
    expect_near(there.exp_avg, m, 1e-6, "exp_avg");
    expect_near(there.exp_avg_sq, v, 1e-6, "exp_avg_sq");
    expect_near(there.value, 0.99 * value.to(at::kDouble) - 0.01 * m / (v.sqrt() / 0.5 + 1e-5), 1e-6,
                "value");
    EXPECT_TRUE(at::equal(there.copy.cpu(), there.value.cpu().to(at::kBFloat16)));
  }
}

TEST_P(Cuda, AdamRoundsItsAveragesAsTheCpuDoes) {
  for (int64_t n : {1, 1003, 3'000'000}) {
    const at::Tensor gradient = on_gpu(random({n})), value = on_gpu(at::randn({n})),
                     exp_avg = on_gpu(at::randn({n}).to(at::kBFloat16)),
                     exp_avg_sq = on_gpu(at::rand({n}).to(at::kBFloat16));
    const AdamNumbers numbers{
        .beta1 = 0.9F, .one_minus_beta1 = 0.1F, .beta2 = 0.95F, .one_minus_beta2 = 0.05F, .eps = 1e-5F};
    const AdamRates rates{.keep = 0.99F, .step_size = 0.01F, .second_correction = 0.5F};
    const RoundedElements first{.key = 11, .columns = n + 7, .part = {7, n + 7}};
    RoundedElements second = first;
    second.key = 12;
    const at::Tensor wide_value = value.clone(), wide = exp_avg.to(at::kFloat),
                     wide_sq = exp_avg_sq.to(at::kFloat);
    step_adam(
        {{.value = wide_value, .gradient = gradient, .exp_avg = wide, .exp_avg_sq = wide_sq, .rates = rates}},
        numbers);
    step_adam({{.value = value,
                .gradient = gradient,
                .exp_avg = exp_avg,
                .exp_avg_sq = exp_avg_sq,
                .rates = rates,
                .rounded = {first, second}}},
              numbers);
    EXPECT_TRUE(at::equal(value, wide_value));
    const auto rounded = [](const at::Tensor& exact, const RoundedElements& elements) {
      at::Tensor to = at::empty(exact.sizes(), at::kBFloat16);
      round_stochastically(exact.cpu(), to, elements);
      return to;
    };
    EXPECT_TRUE(at::equal(exp_avg.cpu(), rounded(wide, first)));
    EXPECT_TRUE(at::equal(exp_avg_sq.cpu(), rounded(wide_sq, second)));
  }
}

TEST_P(Cuda, SumsOfSquaresAreThoseOfDoublePrecision) {
  Tensors tensors, high;
  for (int64_t n : {1, 1000, 300'001, 20'000'000}) {
    high.push_back(random({n}));
    tensors.push_back(on_gpu(high.back()));
  }
  const std::vector<double> sums = sums_of_squares(tensors);
  EXPECT_EQ(sums_of_squares(tensors), sums) << "depends on scheduling";
  for (size_t i = 0; i < sums.size(); ++i) {
    const double expected = high[i].to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sums[i], expected, 1e-12 * expected);
  }
}

class CudaFloat8Products : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "libtorch sees no CUDA device";
    if (!can_fuse(at::empty({1}, at::kCUDA))) GTEST_SKIP() << "built without CUDA kernels";
    const util::CudaDevice gpu = util::cuda_device(0);
    if (!has_float8_units(gpu.capability)) GTEST_SKIP() << gpu.name << " has no 8-bit matrix units";
    at::manual_seed(6);
  }
  static at::Tensor random(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); }
  static double error_of(const at::Tensor& there, const at::Tensor& here) {
    const at::Tensor f = there.cpu().to(at::kDouble), e = here.to(at::kDouble);
    return ((f - e).abs().max() / e.abs().max()).item<double>();
  }
};

TEST_F(CudaFloat8Products, RoundAsTheCpuDoes) {
  for (at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const at::Tensor x = random({208, 1040}),
                     memory = at::empty({208 * 1040 + 3}, x.options().device(at::kCUDA));
    const at::Tensor anywhere = memory.narrow(0, 3, 208 * 1040).view({208, 1040}).copy_(x);
    const Float8Orders both{.values = true, .transposed = true};
    const Float8Matrix here = to_float8(x, largest_magnitude(x), type, both);
    for (const at::Tensor& there : {x.to(at::kCUDA), anywhere}) {
      const Float8Matrix found = to_float8(there, largest_magnitude(there), type, both);
      EXPECT_TRUE(at::equal(found.values.view(at::kByte).cpu(), here.values.view(at::kByte)));
      EXPECT_TRUE(at::equal(found.transposed.view(at::kByte).cpu(), here.transposed.view(at::kByte)));
      EXPECT_TRUE(at::equal(found.inverse_scale.cpu(), here.inverse_scale));
    }
  }
}

TEST_F(CudaFloat8Products, RoundByRowsAsTheCpuDoes) {
  const at::Tensor x = random({208, 1040}) * at::exp2(-at::arange(208) % 9).view({208, 1});
  const Float8Orders both{.values = true, .transposed = true};
  const Float8Matrix here = to_float8_by_rows(x.to(at::kBFloat16), both),
                     there = to_float8_by_rows(x.to(at::kBFloat16).to(at::kCUDA), both);
  EXPECT_TRUE(at::equal(there.values.view(at::kByte).cpu(), here.values.view(at::kByte)));
  EXPECT_TRUE(at::equal(there.transposed.view(at::kByte).cpu(), here.transposed.view(at::kByte)));
  EXPECT_TRUE(at::equal(there.inverse_scale.cpu(), here.inverse_scale));
  EXPECT_TRUE(at::equal(there.inverse_scale_of_transposed.cpu(), here.inverse_scale_of_transposed));
}

TEST_F(CudaFloat8Products, AreThoseOfTheCpu) {
  for (auto [transposed, scaling] : {std::pair{false, Float8Scaling::kTensor},
                                     {true, Float8Scaling::kTensor},
                                     {false, Float8Scaling::kRow},
                                     {true, Float8Scaling::kRow}}) {
    const at::Tensor x = random({64, 96}), bias = random({48}), dy = random({64, 48}),
                     weight = random(transposed ? at::IntArrayRef{96, 48} : at::IntArrayRef{48, 96});
    auto results_on = [&](at::Device device) {
      const at::Tensor input = x.to(device).requires_grad_(), w = weight.to(device).requires_grad_();
      TestSink& sink = TestSink::attach(w);
      at::Tensor y;
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        y = transposed ? float8_transposed_linear(input, w, bias.to(device), {.scaling = scaling})
                       : float8_linears(input, {w, w.detach()}, {.scaling = scaling})[0];
        y.backward(dy.to(device));
      }
      EXPECT_EQ(sink.by_autograd, 0);
      return Tensors{y.detach(), input.grad(), sink.memory};
    };
    const Tensors there = results_on(at::kCUDA), here = results_on(at::kCPU);
    // Forward may accumulate in fewer bits than fp32.
    for (size_t i = 0; i < here.size(); ++i) EXPECT_LT(error_of(there[i], here[i]), 2e-2) << i;
  }
}

TEST_F(CudaFloat8Products, PutGradientsWhereNoKernelCouldWrite) {
  const at::Tensor x = random({64, 96}).to(at::kCUDA), dy = random({64, 48}).to(at::kCUDA),
                   weight = random({48, 96}).to(at::kCUDA).requires_grad_();
  TestSink& sink = TestSink::attach(weight);
  sink.memory = at::empty({48 * 96 + 1}, sink.memory.options()).narrow(0, 1, 48 * 96).view({48, 96});
  float8_linears(x, {weight})[0].backward(dy);
  const at::Tensor first = sink.memory.clone();
  TestSink& aligned = TestSink::attach(weight);
  float8_linears(x, {weight})[0].backward(dy);
  EXPECT_TRUE(at::equal(aligned.memory, first));
}

}  // namespace
}  // namespace fsdp::kernels
