#include "model/kernels/gradient_sink.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "base/util/matrix_units.h"
#include "model/kernels/block_product.h"
#include "model/kernels/fused.h"
#include "model/kernels/matmul.h"
#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

class GradientSinkOf : public ::testing::TestWithParam<Matmul> {
 protected:
  void SetUp() override {
    if (!has_small_products(at::kBFloat16)) GTEST_SKIP() << "no small products on this CPU";
    if (GetParam() == Matmul::kAmx && !util::has_matrix_unit()) GTEST_SKIP() << "no matrix unit";
  }
};
INSTANTIATE_TEST_SUITE_P(Libraries, GradientSinkOf, ::testing::Values(Matmul::kOneDnn, Matmul::kAmx),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(GradientSinkOf, GetsTheSumsOfProductsInFp32WithoutAutograd) {
  at::manual_seed(3);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (bool transposed : {false, true}) {
      const at::Tensor x = at::randn({37, 20}).to(type), bias = at::zeros({24}, type).requires_grad_();
      const at::Tensor weight =
          at::randn(transposed ? at::IntArrayRef{20, 24} : at::IntArrayRef{24, 20}).to(type).requires_grad_();
      TestSink& sink = TestSink::attach(weight);
      const at::Tensor dy = at::randn({37, 24}).to(type);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const at::Tensor y =
            transposed ? transposed_linear(x, weight, bias, GetParam()) : linear(x, weight, GetParam());
        y.backward(dy);
      }
      EXPECT_EQ(sink.by_autograd, 0);
      EXPECT_FALSE(weight.grad().defined());
      const at::Tensor X = x.to(at::kDouble), D = dy.to(at::kDouble);
      const at::Tensor expected = 2 * (transposed ? at::mm(X.t(), D) : at::mm(D.t(), X));
      EXPECT_LT((sink.memory - expected).abs().max().item<double>(), 1e-4) << type << transposed;
    }
  }
}

TEST_P(GradientSinkOf, GetsTheSumsOfProductsOfOneInputAlsoOfAWeightThatComesTwice) {
  at::manual_seed(6);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({70, 20}).to(type);
    const at::Tensor weight = at::randn({24, 20}).to(type).requires_grad_(),
                     other = at::randn({600, 20}).to(type).requires_grad_();
    TestSink& sink = TestSink::attach(weight);
    TestSink& other_sink = TestSink::attach(other);
    const at::Tensor first = at::randn({70, 24}).to(type), second = at::randn({70, 600}).to(type),
                     third = at::randn({70, 24}).to(type);
    const auto ys = linears(x, {weight, other, weight}, GetParam());
    torch::autograd::backward({ys[0], ys[1], ys[2]}, {first, second, third});
    EXPECT_EQ(sink.by_autograd + other_sink.by_autograd, 0);
    const at::Tensor X = x.to(at::kDouble);
    const at::Tensor expected = at::mm((first.to(at::kDouble) + third.to(at::kDouble)).t(), X);
    EXPECT_LT((sink.memory - expected).abs().max().item<double>(), 1e-4) << type;
    EXPECT_LT((other_sink.memory - at::mm(second.to(at::kDouble).t(), X)).abs().max().item<double>(), 1e-4);
  }
}

TEST(GradientSink, GetsTheSumsOfNormsAndBiasesInFp32WithoutAutograd) {
  at::manual_seed(4);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({300, 24}).to(type), dy = at::randn({300, 24}).to(type);
    const at::Tensor weight = at::randn({24}).to(type).requires_grad_(),
                     bias = at::randn({24}).to(type).requires_grad_();
    auto backward_twice = [&](const auto& formula) {
      std::array sinks{&TestSink::attach(weight), &TestSink::attach(bias)};
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) formula().backward(dy);
      std::array<at::Tensor, 2> sums;
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(sinks[i]->by_autograd, 0);
        sums[i] = sinks[i]->memory;
      }
      return sums;
    };
    const at::Tensor D = dy.to(at::kDouble), X = x.to(at::kDouble), centred = X - X.mean(-1, true);
    const at::Tensor of_weight = 2 * (D * centred * (centred.square().mean(-1, true) + 1e-5).rsqrt()).sum(0);
    auto expect = [](const at::Tensor& found, const at::Tensor& expected) {
      EXPECT_LT((found - expected).abs().max().template item<double>(), 1e-4);
    };
    auto [dweight, dbias] = backward_twice([&] { return layer_norm(x, weight, bias, 1e-5); });
    expect(dweight, of_weight);
    expect(dbias, 2 * D.sum(0));
    auto [dweight_too, dbias_too] =
        backward_twice([&] { return add_layer_norm(x, at::zeros_like(x), weight, bias, 1e-5).second; });
    EXPECT_TRUE(dweight_too.equal(dweight));
    EXPECT_TRUE(dbias_too.equal(dbias));
    const at::Tensor leaf = X.clone().requires_grad_();
    at::gelu(leaf + bias.detach().to(at::kDouble), "tanh").backward(D);
    expect(backward_twice([&] { return bias_gelu(x, bias); })[1], 2 * leaf.grad().sum(0));
    if (!has_small_products(type)) continue;
    const at::Tensor square = at::randn({24, 24}).to(type);
    auto product = [&] { return transposed_linear(x, square, bias, Matmul::kOneDnn); };
    expect(backward_twice(product)[1], 2 * D.sum(0));
  }
}

TEST(GradientSink, LeavesItToAutogradWhereItHasNoPlace) {
  at::Tensor weight = at::randn({8, 4}).requires_grad_(), x = at::randn({70, 4});
  TestSink& sink = TestSink::attach(weight);
  sink.refuses = true;
  linear(x, weight, Matmul::kOneDnn).sum().backward();
  EXPECT_EQ(sink.by_autograd, 1);
  EXPECT_TRUE(at::allclose(sink.memory, x.sum(0).expand({8, 4}), 1e-4, 1e-5));
}

/// The functions whose parameters autograd does not see, of x [70, 24] and two parameters, of which vectors
/// may ignore the first. -> [70, 24], or a loss
struct FunctionOfParameters {
  const char* name;
  bool has_matrix, has_vector;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& vector)> compute;
};
std::vector<FunctionOfParameters> functions_of_parameters() {
  const at::Tensor targets = at::randint(24, {70}, at::kLong);
  return {
      {"linear", true, false,
       [](const at::Tensor& x, const at::Tensor& m, const at::Tensor&) {
         return linear(x, m, Matmul::kOneDnn);
       }},
      {"linears", true, false,
       [](const at::Tensor& x, const at::Tensor& m, const at::Tensor&) {
         return linears(x, {m, m}, Matmul::kOneDnn)[0];
       }},
      {"transposed_linear", true, true,
       [](const at::Tensor& x, const at::Tensor& m, const at::Tensor& v) {
         return transposed_linear(x, m, v, Matmul::kOneDnn);
       }},
      {"rms_norm", false, true,
       [](const at::Tensor& x, const at::Tensor&, const at::Tensor& v) { return rms_norm(x, v, 1e-5); }},
      {"layer_norm", false, true,
       [](const at::Tensor& x, const at::Tensor&, const at::Tensor& v) { return layer_norm(x, v, v, 1e-5); }},
      {"bias_gelu", false, true,
       [](const at::Tensor& x, const at::Tensor&, const at::Tensor& v) { return bias_gelu(x, v); }},
      {"linear_cross_entropy", true, false,
       [targets](const at::Tensor& x, const at::Tensor& m, const at::Tensor&) {
         return linear_cross_entropy(x, m, targets, Matmul::kOneDnn, {});
       }}};
}

TEST(GradientSink, GetsAllGradientsOfParametersThatAutogradDoesNotSee) {
  at::manual_seed(7);
  const at::Tensor values = at::randn({70, 24}), dy = at::randn({70, 24});
  for (const FunctionOfParameters& function : functions_of_parameters()) {
    for (bool refuses : {false, true}) {
      const at::Tensor x = values.clone().requires_grad_(), matrix = at::randn({24, 24}).requires_grad_(),
                       vector = at::randn({24}).requires_grad_();
      const auto backward = [&] {
        const at::Tensor y = function.compute(x, matrix, vector);
        y.backward(y.dim() == 0 ? at::ones({}) : dy);
        return std::exchange(x.mutable_grad(), at::Tensor());
      };
      const at::Tensor dx = backward(), of_matrix = std::exchange(matrix.mutable_grad(), at::Tensor()),
                       of_vector = std::exchange(vector.mutable_grad(), at::Tensor());
      TestSink& matrix_sink = TestSink::attach(matrix);
      TestSink& vector_sink = TestSink::attach(vector);
      matrix_sink.refuses = vector_sink.refuses = refuses;
      EXPECT_TRUE(at::allclose(backward(), dx, 1e-5, 1e-5)) << function.name;
      EXPECT_EQ(matrix_sink.holds, function.has_matrix) << function.name;
      EXPECT_EQ(vector_sink.holds, function.has_vector) << function.name;
      const auto expect_close = [&](const TestSink& sink, const at::Tensor& expected) {
        EXPECT_TRUE(!sink.holds || at::allclose(sink.memory, expected, 1e-4, 1e-4)) << function.name;
      };
      expect_close(matrix_sink, of_matrix);
      expect_close(vector_sink, of_vector);
      const at::Tensor y = function.compute(x, matrix, vector);
      for (const auto& edge : y.grad_fn()->next_edges()) {
        EXPECT_TRUE(!edge.function || edge.function == torch::autograd::impl::grad_accumulator(x))
            << function.name;
      }
    }
  }
}

TEST(GradientSink, IsLeftAloneByGradientsOfChosenInputs) {
  const at::Tensor x = at::randn({70, 24}).requires_grad_();
  for (const FunctionOfParameters& function : functions_of_parameters()) {
    const at::Tensor matrix = at::randn({24, 24}).requires_grad_(), vector = at::randn({24}).requires_grad_();
    TestSink& matrix_sink = TestSink::attach(matrix);
    TestSink& vector_sink = TestSink::attach(vector);
    torch::autograd::grad({function.compute(x, matrix, vector).sum()}, {x});
    EXPECT_FALSE(matrix_sink.holds || vector_sink.holds) << function.name;
  }
}

TEST(GradientSink, IsSeenByAutogradWhereAllParametersAre) {
  const at::Tensor x = at::randn({70, 24}).requires_grad_(), weight = at::randn({24, 24}).requires_grad_();
  TestSink::attach(weight);
  const AllParametersSeen seen;
  const at::Tensor y = linear(x, weight, Matmul::kOneDnn);
  EXPECT_EQ(y.grad_fn()->next_edge(1).function, torch::autograd::impl::grad_accumulator(weight));
}

TEST(Embedding, AddsRowsToTheSinkAndGivesATableWithoutOne) {
  const at::Tensor ids = at::tensor({1, 3, 1, 0}, at::kLong).view({2, 2});
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor dy = at::randn({2, 2, 100}).to(type);
    const at::Tensor expected =
        at::zeros({5, 100}).index_add(0, ids.flatten(), dy.view({4, 100}).to(at::kFloat));
    const at::Tensor weight = at::randn({5, 100}).to(type).requires_grad_();
    const at::Tensor y = kernels::embedding(weight, ids);
    EXPECT_TRUE(at::equal(y, at::embedding(weight, ids)));
    y.backward(dy);
    EXPECT_TRUE(at::allclose(weight.grad().to(at::kFloat), expected, 1e-2, 1e-2));

    at::Tensor(weight).mutable_grad() = at::Tensor();
    TestSink& sink = TestSink::attach(weight);
    for (int i = 0; i < 2; ++i) kernels::embedding(weight, ids).backward(dy);
    EXPECT_EQ(sink.by_autograd, 0);
    EXPECT_TRUE(at::allclose(sink.memory, 2 * expected, 1e-6, 1e-6));
  }
}

TEST(Embedding, OfATableThatIsTheHeadTooSumsBoth) {
  const at::Tensor ids = at::tensor({1, 3}, at::kLong), weight = at::randn({5, 8}).requires_grad_();
  auto loss = [&] { return linear(kernels::embedding(weight, ids), weight, Matmul::kMkl).square().sum(); };
  loss().backward();
  const at::Tensor expected = weight.grad().clone();
  at::Tensor(weight).mutable_grad() = at::Tensor();
  TestSink& sink = TestSink::attach(weight);
  loss().backward();
  EXPECT_EQ(sink.by_autograd, 1);
  EXPECT_TRUE(at::allclose(sink.memory, expected, 1e-5, 1e-5));
}

}  // namespace
}  // namespace fsdp::kernels
