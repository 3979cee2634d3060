// Linear layers of one input as one product, against a product for each; on the CPU, which computes what a
// CUDA device does.

#include "model/kernels/joined_linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <vector>

#include "model/kernels/fused.h"
#include "model/kernels/meta.h"
#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kIn = 24;

/// Leaves that lie one after another, as the engine lays out a unit, and copies of them that do not.
struct Layers {
  std::vector<at::Tensor> in_sequence, apart;
  at::Tensor x = at::randn({2, 5, kIn});

  explicit Layers(const std::vector<int64_t>& sizes) {
    int64_t rows = 0;
    for (int64_t size : sizes) rows += size;
    const at::Tensor flat = at::randn({rows * kIn}) * 0.3;
    for (int64_t first = 0; int64_t size : sizes) {
      at::Tensor weight = at::empty({0});
      weight.set_data(flat.narrow(0, first, size * kIn).view({size, kIn}));
      first += size * kIn;
      in_sequence.push_back(weight.requires_grad_());
      apart.push_back(weight.detach().clone().requires_grad_());
    }
  }
  at::Tensor input() const { return x.detach().clone().requires_grad_(); }
};

class JoinedLinear : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

void expect_close(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  ASSERT_TRUE(found.defined()) << what;
  EXPECT_TRUE(at::allclose(found, expected, 1e-5, 1e-6)) << what << ": " << found << expected;
}

TEST_F(JoinedLinear, GivesTheOutputsSideBySideAndTheGradientsOfEachLayer) {
  const Layers layers({8, 3, 5});
  const at::Tensor x = layers.input(), other = layers.input(), dy = at::randn({2, 5, 16});
  const at::Tensor y = joined_linear(x, layers.in_sequence, Matmul::kMkl);
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& weight : layers.apart) outputs.push_back(at::linear(other, weight));
  const at::Tensor expected = at::cat(outputs, -1);
  expect_close(y, expected, "y");
  y.backward(dy);
  expected.backward(dy);
  expect_close(x.grad(), other.grad(), "dx");
  for (size_t i = 0; i < 3; ++i) {
    expect_close(layers.in_sequence[i].grad(), layers.apart[i].grad(), "dweight");
  }
}

TEST_F(JoinedLinear, AddsToGradientPlacesInSequenceByOneProduct) {
  const Layers layers({8, 3, 5});
  const at::Tensor places = at::full({16, kIn}, 1e6);
  std::vector<TestSink*> sinks;
  for (int64_t first = 0; const at::Tensor& weight : layers.in_sequence) {
    sinks.push_back(&TestSink::attach(weight));
    sinks.back()->memory = places.narrow(0, first, weight.size(0));
    first += weight.size(0);
  }
  const at::Tensor dy = at::randn({2, 5, 16}), once = dy.view({-1, 16}).t().mm(layers.x.view({-1, kIn}));
  for (int times = 1; times <= 2; ++times) {
    joined_linear(layers.input(), layers.in_sequence, Matmul::kMkl).backward(dy);
    expect_close(places, once * times, "places");
  }
  for (const TestSink* sink : sinks) EXPECT_EQ(sink->by_autograd, 0);
}

TEST_F(JoinedLinear, AddsToEachPlaceWherePlacesAreNotInSequenceOrNotAlike) {
  for (const bool alike : {true, false}) {
    const Layers layers({8, 3});
    TestSink &first = TestSink::attach(layers.in_sequence[0]),
             &second = TestSink::attach(layers.in_sequence[1]);
    if (!alike) {
      const at::Tensor places = at::zeros({11, kIn});
      first.memory = places.narrow(0, 0, 8);
      second.memory = places.narrow(0, 8, 3);
      second.holds = true;
    }
    const at::Tensor dy = at::randn({2, 5, 11}), dw = dy.view({-1, 11}).t().mm(layers.x.view({-1, kIn}));
    joined_linear(layers.input(), layers.in_sequence, Matmul::kMkl).backward(dy);
    EXPECT_EQ(first.by_autograd + second.by_autograd, 0);
    expect_close(first.memory, dw.narrow(0, 0, 8), "first");
    expect_close(second.memory, dw.narrow(0, 8, 3), "second");
  }
}

TEST_F(JoinedLinear, GivesNoGradientToFrozenWeights) {
  const Layers layers({8, 3});
  layers.in_sequence[0].requires_grad_(false);
  const at::Tensor dy = at::randn({2, 5, 11}), dw = dy.view({-1, 11}).t().mm(layers.x.view({-1, kIn}));
  joined_linear(layers.input(), layers.in_sequence, Matmul::kMkl).backward(dy);
  EXPECT_FALSE(layers.in_sequence[0].grad().defined());
  expect_close(layers.in_sequence[1].grad(), dw.narrow(0, 8, 3), "second");
}

TEST_F(JoinedLinear, KeepsNoInputForFrozenWeights) {
  for (const bool frozen : {true, false}) {
    const Layers layers({8, 3});
    for (const at::Tensor& weight : layers.in_sequence) weight.requires_grad_(!frozen);
    const at::Tensor x = layers.input(), inner = x * 1;
    const at::Tensor y = joined_linear(inner, layers.in_sequence, Matmul::kMkl);
    EXPECT_EQ(inner.storage().use_count() > 1, !frozen);
    y.sum().backward();
    EXPECT_TRUE(x.grad().defined());
  }
}

TEST_F(JoinedLinear, IsForCudaAndWeightsOneAfterAnother) {
  const Layers layers({8, 3});
  EXPECT_FALSE(can_join(layers.x, layers.in_sequence)) << "on the CPU";
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({2, kIn}, meta);
  const std::vector<at::Tensor> weights{at::empty({8, kIn}, meta), at::empty({3, kIn}, meta)};
  const MetaDeviceGuard guard({.type = c10::kCUDA});
  EXPECT_TRUE(can_join(x, weights));
  EXPECT_FALSE(can_join(x, {weights[0], weights[1].to(at::kBFloat16)}));
  EXPECT_FALSE(can_join(x.to(at::kDouble), {weights[0].to(at::kDouble), weights[1].to(at::kDouble)}));
  EXPECT_EQ(joined_linear(x, weights, Matmul::kMkl).sizes(), (std::vector<int64_t>{2, 11}));
  EXPECT_ANY_THROW(joined_linear(layers.x, layers.apart, Matmul::kMkl));
}

TEST_F(JoinedLinear, SwiGluOfBothHalvesIsThatOfTwoTensors) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor both = at::randn({2, 7, 66}).to(type).requires_grad_();
    const at::Tensor gate = both.detach().narrow(-1, 0, 33).clone().requires_grad_();
    const at::Tensor up = both.detach().narrow(-1, 33, 33).clone().requires_grad_();
    const at::Tensor dy = at::randn({2, 7, 33}).to(type);
    const at::Tensor y = joined_swiglu(both), expected = swiglu(gate, up);
    y.backward(dy);
    expected.backward(dy);
    EXPECT_TRUE(y.equal(expected));
    EXPECT_TRUE(both.grad().equal(at::cat({gate.grad(), up.grad()}, -1)));
  }
}

TEST_F(JoinedLinear, RotaryTurnsQueriesAndKeysInPlaceAndLeavesValues) {
  constexpr int64_t kTokens = 6, kQueries = 4, kKeys = 2, kDim = 8;
  const at::Tensor half = at::randn({kTokens, kDim / 2}), angles = at::cat({half, half}, -1);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const at::Tensor leaf = at::randn({3, kTokens, (kQueries + 2 * kKeys) * kDim}).requires_grad_();
  const at::Tensor same = leaf.detach().clone().requires_grad_();
  const at::Tensor heads = same.view({3, kTokens, kQueries + 2 * kKeys, kDim});
  const at::Tensor q = rotary(heads.narrow(2, 0, kQueries), cos, sin),
                   k = rotary(heads.narrow(2, kQueries, kKeys), cos, sin),
                   v = heads.narrow(2, kQueries + kKeys, kKeys);

  const at::Tensor product = leaf * 1;  // whose memory is given away
  const auto found = joined_rotary(product, {kQueries, kKeys}, cos, sin);
  EXPECT_TRUE(found[0].is_alias_of(product) && found[2].is_alias_of(product));
  EXPECT_TRUE(found[0].equal(q));
  EXPECT_TRUE(found[1].equal(k));
  EXPECT_TRUE(found[2].equal(v));
  (found[0].square().sum() + found[1].pow(3).sum() + found[2].sin().sum()).backward();
  (q.square().sum() + k.pow(3).sum() + v.sin().sum()).backward();
  expect_close(leaf.grad(), same.grad(), "gradient");
}

TEST_F(JoinedLinear, SplitComputesTheBiasesGradientThatTheProductLeaves) {
  constexpr int64_t kQueries = 4, kKeys = 2, kDim = 8, kWidth = (kQueries + 2 * kKeys) * kDim;
  const JoinedHeads heads{kQueries, kKeys};
  const at::Tensor x = at::randn({3, 6, kIn}), weight = at::randn({kIn, kWidth}) * 0.3,
                   bias = at::randn({kWidth});
  const std::vector<int64_t> widths{kQueries * kDim, kKeys * kDim, kKeys * kDim};
  struct Leaves {
    at::Tensor x, weight, bias;
  };
  const auto leaves = [&]() -> Leaves {
    return {x.clone().requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_()};
  };
  const auto backward = [](const std::array<at::Tensor, 3>& qkv) {
    (qkv[0].square().sum() + qkv[1].pow(3).sum() + qkv[2].sin().sum()).backward();
  };
  const auto product = [](const Leaves& of) {
    return transposed_linear(of.x, of.weight, of.bias, Matmul::kOneDnn, false, /*leaves_bias=*/true);
  };
  const Leaves plain = leaves(), ours = leaves(), with_sink = leaves(), alone = leaves();
  const auto parts = (at::matmul(plain.x, plain.weight) + plain.bias).split_with_sizes(widths, -1);
  const auto seen = [&](const at::Tensor& part) { return part.unflatten(-1, {-1, kDim}); };
  backward({seen(parts[0]), seen(parts[1]), seen(parts[2])});

  const auto qkv = joined_split(product(ours), heads, ours.bias);
  for (size_t i = 0; i < 3; ++i) expect_close(qkv[i], seen(parts[i]), "heads");
  backward(qkv);
  expect_close(ours.x.grad(), plain.x.grad(), "dx");
  expect_close(ours.weight.grad(), plain.weight.grad(), "dweight");
  expect_close(ours.bias.grad(), plain.bias.grad(), "dbias");

  const TestSink& sink = TestSink::attach(with_sink.bias);
  for (int times = 1; times <= 2; ++times) {
    backward(joined_split(product(with_sink), heads, with_sink.bias));
    expect_close(sink.memory, plain.bias.grad() * times, "dbias in its place");
  }
  EXPECT_EQ(sink.by_autograd, 0);

  product(alone).sum().backward();
  EXPECT_FALSE(alone.bias.grad().defined());
}

}  // namespace
}  // namespace fsdp::kernels
