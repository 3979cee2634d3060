#include "model/kernels/matmul.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/util/error.h"
#include "base/util/matrix_units.h"

namespace fsdp::kernels {
namespace {

double error_of(const at::Tensor& ours, const at::Tensor& expected) {
  return ((ours.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

class MatmulOf : public ::testing::TestWithParam<Matmul> {
 protected:
  void SetUp() override {
    if (GetParam() == Matmul::kAmx && !util::has_matrix_unit()) GTEST_SKIP() << "no matrix unit";
  }
};
INSTANTIATE_TEST_SUITE_P(Libraries, MatmulOf, ::testing::Values(Matmul::kMkl, Matmul::kOneDnn, Matmul::kAmx),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(MatmulOf, LinearAndItsGradientsAreThoseOfDoublePrecision) {
  at::manual_seed(1);
  for (auto [rows, in, out] : {std::tuple{1, 1, 1}, {3, 5, 7}, {130, 65, 33}, {256, 512, 300}}) {
    at::Tensor x = at::randn({2, rows, in}).requires_grad_(true);
    at::Tensor weight = at::randn({out, in}).requires_grad_(true), dy = at::randn({2, rows, out});
    at::Tensor y = linear(x, weight, GetParam());
    const auto gradients = torch::autograd::grad({y}, {x, weight}, {dy});
    const at::Tensor X = x.detach().to(at::kDouble), W = weight.detach().to(at::kDouble),
                     D = dy.to(at::kDouble);
    EXPECT_LT(error_of(y, at::matmul(X, W.t())), 3e-6);
    EXPECT_LT(error_of(gradients[0], at::matmul(D, W)), 3e-6);
    EXPECT_LT(error_of(gradients[1], at::matmul(D.flatten(0, 1).t(), X.flatten(0, 1))), 3e-6);
    EXPECT_TRUE(gradients[1].is_contiguous());
  }
}

TEST_P(MatmulOf, TransposedLinearHasABias) {
  at::manual_seed(2);
  at::Tensor x = at::randn({70, 33}).requires_grad_(true), weight = at::randn({33, 48}).requires_grad_(true);
  at::Tensor bias = at::randn({48}).requires_grad_(true), dy = at::randn({70, 48});
  at::Tensor y = transposed_linear(x, weight, bias, GetParam());
  const auto gradients = torch::autograd::grad({y}, {x, weight, bias}, {dy});
  const at::Tensor X = x.detach().to(at::kDouble), W = weight.detach().to(at::kDouble),
                   D = dy.to(at::kDouble);
  EXPECT_LT(error_of(y, at::mm(X, W) + bias.detach()), 3e-6);
  EXPECT_LT(error_of(gradients[0], at::mm(D, W.t())), 3e-6);
  EXPECT_LT(error_of(gradients[1], at::mm(X.t(), D)), 3e-6);
  EXPECT_LT(error_of(gradients[2], D.sum(0)), 3e-6);
}

TEST_P(MatmulOf, TransposedLinearHasABiasInBf16) {
  at::manual_seed(4);
  for (int64_t rows : {3, 70}) {
    at::Tensor x = at::randn({rows, 1700}).to(at::kBFloat16),
               weight = at::randn({1700, 48}).to(at::kBFloat16);
    at::Tensor bias = (at::randn({48}) * 50).to(at::kBFloat16);
    const at::Tensor expected = at::mm(x.to(at::kDouble), weight.to(at::kDouble)) + bias.to(at::kDouble);
    EXPECT_LT(error_of(transposed_linear(x, weight, bias, GetParam()), expected), 4e-3) << rows;
  }
}

TEST_P(MatmulOf, LinearsAreLinearLayersWithOneInput) {
  at::manual_seed(3);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int64_t rows : {1, 40, 130}) {
      const double most = type == at::kFloat ? 3e-6 : 2e-2;
      at::Tensor x = at::randn({2, rows, 65}).to(type).requires_grad_(true);
      std::vector<at::Tensor> weights, dys;
      for (int64_t out : {33, 1, 48}) {
        weights.push_back(at::randn({out, 65}).to(type).requires_grad_(out != 1));
        dys.push_back(at::randn({2, rows, out}).to(type));
      }
      const auto ys = linears(x, weights, GetParam());
      const auto gradients = torch::autograd::grad(ys, {x, weights[0], weights[2]}, dys);
      at::Tensor dx = at::zeros({2, rows, 65}, at::kDouble);
      for (size_t i = 0; i < 3; ++i) {
        const at::Tensor W = weights[i].detach().to(at::kDouble), D = dys[i].to(at::kDouble);
        EXPECT_EQ(ys[i].sizes(), dys[i].sizes());
        EXPECT_LT(error_of(ys[i], at::matmul(x.detach().to(at::kDouble), W.t())), most);
        dx += at::matmul(D, W);
      }
      EXPECT_LT(error_of(gradients[0], dx), most);
      const at::Tensor X = x.detach().to(at::kDouble).flatten(0, 1);
      EXPECT_LT(error_of(gradients[1], at::mm(dys[0].to(at::kDouble).flatten(0, 1).t(), X)), most);
      EXPECT_LT(error_of(gradients[2], at::mm(dys[2].to(at::kDouble).flatten(0, 1).t(), X)), most);
    }
  }
}

TEST_P(MatmulOf, LinearsNeedNotAllBeUsed) {
  at::Tensor x = at::ones({70, 3}).requires_grad_(true), used = at::ones({2, 3}).requires_grad_(true);
  linears(x, {used, at::ones({4, 3}).requires_grad_(true)}, GetParam())[0].sum().backward();
  EXPECT_TRUE(x.grad().eq(2).all().item<bool>());
  EXPECT_TRUE(used.grad().eq(70).all().item<bool>());
}

TEST_P(MatmulOf, ComputesNoGradientThatNobodyAsksFor) {
  at::Tensor x = at::ones({4, 3}).requires_grad_(true), weight = at::ones({2, 3});
  linear(x, weight, GetParam()).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST_P(MatmulOf, ServesLowPrecisionAndEmptyInputs) {
  EXPECT_EQ(
      linear(at::ones({2, 3}, at::kBFloat16), at::ones({4, 3}, at::kBFloat16), GetParam()).scalar_type(),
      at::kBFloat16);
  EXPECT_EQ(linear(at::ones({0, 3}), at::ones({4, 3}), GetParam()).sizes(), (std::vector<int64_t>{0, 4}));
}

TEST(MatmulByName, KnowsItsNames) {
  EXPECT_EQ(matmul_by_name("mkl"), Matmul::kMkl);
  EXPECT_EQ(matmul_by_name("onednn"), Matmul::kOneDnn);
  EXPECT_EQ(matmul_by_name("auto"), matmul_by_name("auto"));
  EXPECT_THROW(matmul_by_name("blas"), util::Error);
  if (util::has_matrix_unit()) {
    EXPECT_EQ(matmul_by_name("amx"), Matmul::kAmx);
    EXPECT_EQ(matmul_by_name("auto"), Matmul::kAmx);
  } else {
    EXPECT_THROW(matmul_by_name("amx"), util::Error);
  }
}

}  // namespace
}  // namespace fsdp::kernels
