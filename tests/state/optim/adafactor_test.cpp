#include "state/optim/adafactor.h"

#include <gtest/gtest.h>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"
#include "state/optim/matrix_blocks.h"
#include "state/optim/shards.h"

namespace fsdp::optim {
namespace {

OptimizerOptions adafactor_options() {
  OptimizerOptions options;
  options.name = "adafactor";
  return options;
}

// All figures are those after ten steps of
//
//   W = torch.tensor([[0.5, -1, 2], [0, -0.25, 0.75]], requires_grad=True)
//   B = torch.tensor([0.1, -0.3], requires_grad=True)
//   o = Adafactor([W, B], ...)
//   in step t: the gradients [[0.3, -0.2, 0.1], [0.5, -0.4, 1]] / t - 0.01 * t and [0.2, -0.1] / t - 0.01 * t
std::unique_ptr<Optimizer> after_ten_steps(const OptimizerOptions& options, double lr) {
  auto optimizer =
      over_tensors(options, {{"weight", at::tensor({0.5f, -1.f, 2.f, 0.f, -0.25f, 0.75f}).view({2, 3})},
                             {"bias", at::tensor({0.1f, -0.3f})}});
  take_steps(*optimizer, 10, at::tensor({0.3f, -0.2f, 0.1f, 0.5f, -0.4f, 1.f, 0.2f, -0.1f}), lr);
  return optimizer;
}

void expect_near(const at::Tensor& found, const std::vector<float>& expected) {
  EXPECT_TRUE(found.allclose(at::tensor(expected), 1e-6, 2e-7)) << found;
}

// transformers 5.24: Adafactor([W, B]), whose defaults are relative_step=True and scale_parameter=True. Those
// of torch 2.11's torch.optim.Adafactor([W, B]) differ by 1.2e-7 at most.
TEST(Adafactor, GivesTheFiguresOfHuggingFaceAndOfPyTorch) {
  auto optimizer = after_ten_steps(adafactor_options(), 0.01);
  expect_near(optimizer->parameters()[0].value, {0.495816082f, -0.873271465f, 2.02773428f, -0.0169234574f,
                                                 -0.185475931f, 0.71428138f, 0.104001939f, -0.278963447f});
  expect_near(optimizer->state("exp_avg_sq_row", 0), {0.00751526374f, 0.0362315513f});
  expect_near(optimizer->state("exp_avg_sq_col", 0), {0.0109627927f, 0.0192223005f, 0.0354351327f});
  expect_near(optimizer->state("exp_avg_sq", 0), {0.00430188375f, 0.00784167368f});
}

// transformers: Adafactor([W, B], lr=0.01, relative_step=False, scale_parameter=False).
TEST(Adafactor, GivesTheFiguresOfHuggingFaceForAGivenRate) {
  OptimizerOptions options = adafactor_options();
  options.relative_step = options.scale_parameter = false;
  expect_near(after_ten_steps(options, 0.01)->parameters()[0].value,
              {0.496222198f, -0.870044231f, 2.02863884f, -0.0171362199f, -0.183867946f, 0.713555872f,
               0.119595267f, -0.202934086f});
}

// transformers: Adafactor([W, B], lr=0.01, relative_step=False, scale_parameter=True, beta1=0.9,
// weight_decay=0.1, clip_threshold=0.5, decay_rate=-0.5, eps=(1e-3, 0.9)).
TEST(Adafactor, GivesTheFiguresOfHuggingFaceWithEveryOption) {
  OptimizerOptions options = adafactor_options();
  options.relative_step = false;
  options.beta1 = 0.9;
  options.weight_decay = 0.1;
  options.clip_threshold = 0.5;
  options.decay_rate = -0.5;
  options.adafactor_eps = {1e-3, 0.9};
  auto optimizer = after_ten_steps(options, 0.01);
  expect_near(optimizer->parameters()[0].value, {0.48603037f, -0.957446635f, 1.98603749f, -0.00889718998f,
                                                 -0.227916434f, 0.727588952f, 0.0972231179f, -0.27548933f});
  expect_near(optimizer->state("exp_avg", 0),
              {-0.000944361265f, -0.00494465465f, -0.00200370234f, 0.00016966321f, -0.00329117337f,
               0.00168651901f, -0.00124294613f, -0.00330293761f});
}

// torch.optim.Adafactor([W, B], lr=0.5, eps=(1e-15, 1e-3)), whose eps1 is compared with a root.
TEST(Adafactor, LimitsTheRateToTheRootOfTheStep) {
  auto optimizer = after_ten_steps(adafactor_options(), 0.5);
  EXPECT_TRUE(optimizer->parameters()[0].value.allclose(
      at::tensor({1.48780107f, 6.96310329f, 4.24079132f, -0.506507516f, 3.78002453f, -1.05925214f,
                  -0.0185863134f, 0.0441895388f}),
      1e-6, 1e-6))
      << optimizer->parameters()[0].value;
}

TEST(Adafactor, KeepsANumberPerRowAndColumnOfMatrices) {
  auto optimizer =
      over_tensors(adafactor_options(),
                   {{"weight", at::zeros({5, 7})}, {"bias", at::zeros({3})}, {"other", at::zeros({2, 4})}});
  EXPECT_EQ(optimizer->state("exp_avg_sq_row", 0).numel(), 5 + 2);
  EXPECT_EQ(optimizer->state("exp_avg_sq_col", 0).numel(), 7 + 4);
  EXPECT_EQ(optimizer->state("exp_avg_sq", 0).numel(), 3);
  EXPECT_EQ(optimizer->state_of_tensor("exp_avg_sq_col", 0, "other").storage_offset(), 7);
  EXPECT_EQ(optimizer->state_of_tensor("exp_avg_sq_col", 0, "other").numel(), 4);
  EXPECT_THROW(optimizer->state_of_tensor("exp_avg_sq_col", 0, "bias"), util::Error);
  EXPECT_THROW(optimizer->state_of_tensor("exp_avg_sq", 0, "bias"), util::Error);
}

TEST(Adafactor, BearsGradientsOfZero) {
  auto optimizer = over_tensors(adafactor_options(), {{"weight", at::ones({5, 7})}, {"bias", at::ones({3})}});
  optimizer->step({at::zeros({38})}, 1e-2);
  EXPECT_TRUE(optimizer->parameters()[0].value.eq(1).all().item<bool>());
}

TEST(Adafactor, RefusesOptionsWithoutMeaning) {
  const auto refused = [](auto change) {
    OptimizerOptions options = adafactor_options();
    change(options);
    EXPECT_THROW(over_tensors(options, {}), util::Error);
  };
  refused([](auto& o) { o.clip_threshold = 0; });
  refused([](auto& o) { o.decay_rate = 0.8; });
  refused([](auto& o) { o.beta1 = 1; });
  refused([](auto& o) { o.adafactor_eps = {1e-30}; });
  refused([](auto& o) { o.adafactor_eps = {1e-30, -1}; });
  EXPECT_THROW(make_optimizer(adafactor_options(), {}), util::Error) << "nobody to ask for sums";
}

void expect_blocks_of(const at::Tensor& matrix, const std::vector<util::Rectangle>& parts, size_t most) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const at::Tensor mask = at::zeros_like(matrix), local = at::empty({util::numel_of(parts)});
  util::for_each_part(parts, local, [&](const util::Rectangle& part, const at::Tensor& values) {
    util::rectangle_view(mask, part).fill_(1);
    values.view({part.height(), part.length()}).copy_(util::rectangle_view(matrix, part));
  });
  std::vector<double> row_sums(static_cast<size_t>(rows)), column_sums(static_cast<size_t>(columns));
  const std::vector<MatrixBlock> blocks = blocks_of(parts, rows, columns);
  EXPECT_LE(blocks.size(), most);
  for (const MatrixBlock& block : blocks) {
    EXPECT_TRUE(at::equal(block.of(local),
                          matrix.narrow(0, block.row, block.rows).narrow(1, block.column, block.columns)));
    add_squares(block.of(local), row_sums.data() + block.row, column_sums.data() + block.column);
  }
  const at::Tensor squares = (matrix * mask).to(at::kDouble).square();
  EXPECT_TRUE(at::tensor(row_sums, at::kDouble).allclose(squares.sum(1), 1e-12, 0));
  EXPECT_TRUE(at::tensor(column_sums, at::kDouble).allclose(squares.sum(0), 1e-12, 0));
}

TEST(MatrixBlocks, MakeUpEveryPartOfAMatrix) {
  const at::Tensor matrix = random_values(4 * 6, "matrix").view({4, 6});
  for (int64_t rows : {1, 4, 8, 12}) {
    const int64_t columns = matrix.numel() / rows;
    for (int64_t row_begin = 0; row_begin < rows; ++row_begin) {
      for (int64_t row_end = row_begin; row_end <= rows; ++row_end) {
        for (int64_t begin = 0; begin <= columns; ++begin) {
          for (int64_t end = begin; end <= columns; ++end) {
            expect_blocks_of(matrix, {{begin, end, rows, row_begin, row_end}}, 3);
          }
        }
      }
    }
  }
}

TEST(MatrixBlocks, OfSeveralPartsComeAfterEachOther) {
  const at::Tensor matrix = random_values(4 * 6, "matrix").view({4, 6});
  expect_blocks_of(matrix, {{4, 6, 4, 0, 1}, {3, 6, 4, 1, 3}, {3, 4, 4, 3, 4}}, 3);
  expect_blocks_of(matrix, {{1, 2, 8, 1, 2}, {0, 2, 8, 2, 5}, {0, 1, 8, 5, 6}}, 4);
}

}  // namespace
}  // namespace fsdp::optim
