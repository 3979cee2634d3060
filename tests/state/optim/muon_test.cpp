#include "state/optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/util/error.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

/// The matrices of one unsharded parameter: each is a range of it.
class LocalMatrices final : public WholeMatrices {
 public:
  struct Matrix {
    int64_t begin, rows, columns;
  };
  explicit LocalMatrices(std::vector<Matrix> matrices) : matrices_(std::move(matrices)) {}

  bool has_matrices(size_t) const override { return !matrices_.empty(); }
  void map(size_t, const at::Tensor& flat, const Function& function) override {
    for (const Matrix& matrix : matrices_) {
      at::Tensor part = flat.narrow(0, matrix.begin, matrix.rows * matrix.columns);
      part.copy_(function(part.view({matrix.rows, matrix.columns}).clone()).flatten());
    }
  }
  void add_up(size_t, const at::Tensor&) override {}

 private:
  std::vector<Matrix> matrices_;
};

OptimizerOptions muon_options(bool fused = true) {
  OptimizerOptions options;
  options.name = "muon";
  options.momentum = 0.95;
  options.nesterov = true;
  options.fused = fused;
  return options;
}

const Treatment kMatrix{.matrix = true};

std::unique_ptr<Optimizer> over_matrix(const OptimizerOptions& options, const at::Tensor& value,
                                       WholeMatrices& matrices) {
  return make_optimizer(options, {{"p", value.flatten().clone(), {{0, value.numel(), kMatrix}}}}, &matrices);
}

/// The definition, in double precision, of torch.optim.Muon.
at::Tensor expected_after(const at::Tensor& value, const at::Tensor& gradients, int64_t steps,
                          const OptimizerOptions& options, double lr) {
  at::Tensor result = value.to(at::kDouble), buffer = at::zeros_like(result);
  const auto rows = static_cast<double>(value.size(0)), columns = static_cast<double>(value.size(1));
  const double ratio = options.adjust_lr_fn == "original" ? std::sqrt(std::max(1.0, rows / columns))
                                                          : 0.2 * std::sqrt(std::max(rows, columns));
  for (int64_t step = 1; step <= steps; ++step) {
    at::Tensor gradient = gradient_of_step(gradients, step).to(at::kDouble);
    buffer = options.momentum * buffer + (1 - options.momentum) * gradient;
    at::Tensor x = options.nesterov ? options.momentum * buffer + (1 - options.momentum) * gradient : buffer;
    x = x / x.norm();
    for (int64_t i = 0; i < options.ns_steps; ++i) {
      at::Tensor a = x.mm(x.t());
      x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
    }
    result = result * (1 - lr * weight_decay_of(options)) - lr * ratio * x;
  }
  return result;
}

TEST(Orthogonalized, BringsSingularValuesNearOne) {
  for (auto [rows, columns] : {std::pair<int64_t, int64_t>{12, 30}, {30, 12}, {16, 16}}) {
    at::Tensor matrix = random_values(rows * columns, "matrix").view({rows, columns});
    at::Tensor result = orthogonalized(matrix, 5, {3.4445, -4.7750, 2.0315});
    ASSERT_EQ(result.sizes(), matrix.sizes());
    EXPECT_TRUE(result.is_contiguous());
    at::Tensor values = at::linalg_svdvals(result);
    EXPECT_GT(values.min().item<double>(), 0.3) << values;
    EXPECT_LT(values.max().item<double>(), 1.3) << values;
  }
}

// a + b + c = 1 and a + 3 b + 5 c = 0 make 1 a fixed point at which the iteration converges.
TEST(Orthogonalized, ConvergesToTheNearestOrthogonalMatrix) {
  at::Tensor matrix = random_values(12 * 7, "matrix").view({12, 7});
  at::Tensor result = orthogonalized(matrix, 40, {1.875, -1.25, 0.375});
  auto [u, s, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
  EXPECT_TRUE(result.allclose(u.mm(v), 1e-4, 1e-5));
}

TEST(Orthogonalized, LeavesZerosAlone) {
  EXPECT_TRUE(orthogonalized(at::zeros({3, 5}), 5, {3.4445, -4.7750, 2.0315}).equal(at::zeros({3, 5})));
}

TEST(Muon, AgreesWithTheDefinitionInDoublePrecision) {
  for (bool fused : {true, false}) {
    for (bool nesterov : {true, false}) {
      for (const char* adjust : {"original", "match_rms_adamw"}) {
        for (auto [rows, columns] : {std::pair<int64_t, int64_t>{8, 21}, {21, 8}}) {
          OptimizerOptions options = muon_options(fused);
          options.nesterov = nesterov;
          options.adjust_lr_fn = adjust;
          at::Tensor value = random_values(rows * columns, "value").view({rows, columns});
          at::Tensor gradient = random_values(rows * columns, "gradient").view({rows, columns});
          LocalMatrices matrices({{0, rows, columns}});
          auto optimizer = over_matrix(options, value, matrices);
          take_steps(*optimizer, 4, gradient.flatten(), 0.02);
          at::Tensor expected = expected_after(value, gradient, 4, options, 0.02);
          at::Tensor found = optimizer->parameters()[0].value.view({rows, columns}).to(at::kDouble);
          EXPECT_LT((found - expected).abs().max().item<double>(), 3e-6)
              << fused << nesterov << adjust << rows;
        }
      }
    }
  }
}

TEST(Muon, UpdatesTheRestAsAdamW) {
  at::Tensor value = random_values(100, "value"), gradient = random_values(100, "gradient");
  LocalMatrices matrices({{20, 5, 8}});
  for (bool fused : {true, false}) {
    auto muon = make_optimizer(
        muon_options(fused),
        {{"p", value.clone(), {{0, 20}, {20, 60, kMatrix}, {60, 70, {.decay = false}}, {70, 97}}}},
        &matrices);
    OptimizerOptions options;
    options.fused = fused;
    auto adamw =
        make_optimizer(options, {{"p", value.clone(), {{0, 20}, {60, 70, {.decay = false}}, {70, 97}}}});
    take_steps(*muon, 3, gradient, 1e-2);
    take_steps(*adamw, 3, gradient, 1e-2);
    const at::Tensor &found = muon->parameters()[0].value, &expected = adamw->parameters()[0].value;
    EXPECT_TRUE(same_bits(found.slice(0, 0, 20), expected.slice(0, 0, 20)));
    EXPECT_TRUE(same_bits(found.slice(0, 60, 100), expected.slice(0, 60, 100)));
    EXPECT_TRUE(found.slice(0, 20, 60).ne(value.slice(0, 20, 60)).all().item<bool>());
  }
}

TEST(Muon, KeepsOneAverageOfMatricesAndTwoOfTheRest) {
  LocalMatrices matrices({{20, 5, 8}});
  auto muon = make_optimizer(muon_options(),
                             {{"p", at::zeros({100}), {{0, 20}, {20, 60, kMatrix}, {60, 97}}}}, &matrices);
  EXPECT_EQ(muon->state_names(), (std::vector<std::string>{"momentum_buffer", "exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(muon->state("momentum_buffer", 0).numel(), 40);
  EXPECT_EQ(muon->state("exp_avg", 0).numel(), 57);
  EXPECT_EQ(muon->state("exp_avg_sq", 0).numel(), 57);
  // The second range of the others lies behind the first, without the matrix between them.
  EXPECT_EQ(muon->state_of("exp_avg", 0, 62, 70).data.storage_offset(), 22);
  EXPECT_EQ(muon->state_of("momentum_buffer", 0, 30, 35).data.storage_offset(), 10);
  EXPECT_EQ(muon->state_of("momentum_buffer", 0, 3, 3).data.numel(), 0);
  EXPECT_THROW(muon->state_of("momentum_buffer", 0, 3, 5), util::Error);
}

TEST(Muon, FusedAgreesWithComposed) {
  at::Tensor value = random_values(40, "value").view({5, 8}), gradient = random_values(40, "gradient");
  LocalMatrices matrices({{0, 5, 8}});
  auto fused = over_matrix(muon_options(true), value, matrices);
  auto composed = over_matrix(muon_options(false), value, matrices);
  take_steps(*fused, 20, gradient, 1e-2);
  take_steps(*composed, 20, gradient, 1e-2);
  EXPECT_TRUE(fused->parameters()[0].value.allclose(composed->parameters()[0].value, 1e-4, 1e-5));
  EXPECT_TRUE(fused->state("momentum_buffer", 0).allclose(composed->state("momentum_buffer", 0), 1e-5, 1e-6));
}

TEST(Muon, ContinuesFromASavedStateAsIfUninterrupted) {
  at::Tensor value = random_values(40, "value").view({5, 8}), gradient = random_values(40, "gradient");
  LocalMatrices matrices({{0, 5, 8}});
  auto through = over_matrix(muon_options(), value, matrices),
       first = over_matrix(muon_options(), value, matrices);
  take_steps(*through, 5, gradient, 1e-2);
  take_steps(*first, 2, gradient, 1e-2);
  auto second = over_matrix(muon_options(), first->parameters()[0].value, matrices);
  second->state("momentum_buffer", 0).copy_(first->state("momentum_buffer", 0));
  second->set_step_count(2);
  take_steps(*second, 3, gradient, 1e-2);
  EXPECT_TRUE(same_bits(second->parameters()[0].value, through->parameters()[0].value));
}

TEST(Muon, RefusesOptionsWithoutMeaning) {
  LocalMatrices matrices({});
  auto refused = [&](auto change) {
    OptimizerOptions options = muon_options();
    change(options);
    EXPECT_THROW(make_optimizer(options, {}, &matrices), util::Error);
  };
  refused([](auto& o) { o.momentum = 0; });
  refused([](auto& o) { o.momentum = 1; });
  refused([](auto& o) { o.ns_steps = 0; });
  refused([](auto& o) { o.ns_steps = 100; });
  refused([](auto& o) { o.ns_coefficients = {1, 2}; });
  EXPECT_THROW(muon_options().adjust_lr_fn = "none", util::Error);
  EXPECT_THROW(make_optimizer(muon_options(), {}), util::Error) << "nobody to ask for whole matrices";
}

TEST(Treatment, TakesMatricesThatNoPatternExcepts) {
  const OptimizerOptions muon = muon_options();
  EXPECT_TRUE(treatment_of(muon, "model.layers.0.mlp.up_proj.weight", {20, 12}).matrix);
  EXPECT_FALSE(treatment_of(muon, "model.norm.weight", {12}).matrix);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight"}) {
    EXPECT_FALSE(treatment_of(muon, name, {17, 12}).matrix) << name;
  }
  EXPECT_FALSE(treatment_of(OptimizerOptions{}, "model.layers.0.mlp.up_proj.weight", {20, 12}).matrix);
}

}  // namespace
}  // namespace fsdp::optim
