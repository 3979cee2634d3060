// Attention and positions within documents (StageContext::documents).

#include "model/nn/documents.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "model/kernels/fused.h"
#include "model/nn/loss.h"
#include "model/nn/recompute.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

std::vector<ModelOptions> models() {
  std::vector<ModelOptions> models;
  for (bool fused : {true, false}) {
    for (const char* architecture : {"llama", "gpt2"}) {
      ModelOptions options = testing::tiny_options(architecture);
      options.fused_kernels = fused;
      models.push_back(options);
    }
  }
  return models;
}

/// Two rows of 12 tokens: documents of 5 and 7 tokens, and one of 12.
const DocumentStarts kStarts = {{0, 5}, {0}};

struct Rows {
  at::Tensor inputs, targets;
};
Rows rows() {
  const at::Tensor tokens = testing::token_rows(3, 2, 12, 17);
  Rows rows{tokens.narrow(1, 0, 12), tokens.narrow(1, 1, 12).clone()};
  rows.targets[0][4] = kernels::kIgnored;  // the first token of the second document
  return rows;
}

/// The sum of the losses of tokens [begin, begin + length) of a row as a separate text.
double loss_alone(Stage& model, const Rows& rows, int64_t row, int64_t begin, int64_t length) {
  const at::Tensor inputs = rows.inputs.narrow(0, row, 1).narrow(1, begin, length);
  const at::Tensor targets = rows.targets.narrow(0, row, 1).narrow(1, begin, length).contiguous();
  const auto counted = (targets != kernels::kIgnored).sum().item<double>();
  return loss_of(model, inputs, targets).item<double>() * counted;
}

TEST(DocumentsOfAModel, HaveTheLossesThatTheyHaveAlone) {
  for (const ModelOptions& options : models()) {
    auto model = testing::make_initialized(options);
    const Rows all = rows();
    const double expected = (loss_alone(*model, all, 0, 0, 5) + loss_alone(*model, all, 0, 5, 7) +
                             loss_alone(*model, all, 1, 0, 12)) /
                            23;
    const auto documents = std::make_shared<const DocumentStarts>(kStarts);
    const double found = loss_of(*model, all.inputs, all.targets, {.documents = documents}).item<double>();
    EXPECT_NEAR(found, expected, 1e-6) << options.architecture << " fused " << options.fused_kernels;
    EXPECT_GT(std::abs(loss_of(*model, all.inputs, all.targets).item<double>() - expected), 1e-4);
  }
}

TEST(DocumentsOfAModel, HaveTheGradientsThatTheyHaveAlone) {
  for (const ModelOptions& options : models()) {
    for (bool recomputes : {false, true}) {
      auto together = testing::make_initialized(options), apart = testing::make_initialized(options);
      if (recomputes) checkpoint_activations(*together, {"block"});
      const Rows all = rows();
      loss_of(*together, all.inputs, all.targets,
              {.documents = std::make_shared<const DocumentStarts>(kStarts)})
          .backward();
      struct Part {
        int64_t row, begin, length, counted;
      };
      for (const Part& part : {Part{0, 0, 5, 4}, Part{0, 5, 7, 7}, Part{1, 0, 12, 12}}) {
        const at::Tensor inputs = all.inputs.narrow(0, part.row, 1).narrow(1, part.begin, part.length);
        const at::Tensor targets =
            all.targets.narrow(0, part.row, 1).narrow(1, part.begin, part.length).contiguous();
        (loss_of(*apart, inputs, targets) * (static_cast<double>(part.counted) / 23)).backward();
      }
      const auto expected = apart->named_parameters();
      for (const auto& parameter : together->named_parameters()) {
        const at::Tensor& gradient = expected[parameter.key()].grad();
        EXPECT_TRUE(at::allclose(parameter.value().grad(), gradient, 1e-4, 1e-6))
            << options.architecture << " " << parameter.key();
      }
    }
  }
}

TEST(DocumentsOfAModel, OfRowsInWhichNothingCountsHaveNoLoss) {
  for (const ModelOptions& options : models()) {
    auto model = testing::make_initialized(options);
    const Rows all = rows();
    at::Tensor loss = loss_of(*model, all.inputs, at::full_like(all.targets, kernels::kIgnored));
    EXPECT_EQ(loss.item<double>(), 0);
    loss.backward();
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_EQ(parameter.grad().abs().max().item<double>(), 0);
    }
  }
}

/// Rows with documents of 5, 6 and 1 tokens, and of 12.
const DocumentStarts kFour = {{0, 5, 11}, {0}};

TEST(Documents, HaveBoundsInRowsOneAfterAnother) {
  EXPECT_TRUE(document_bounds(kFour, 12, at::kCPU).equal(at::tensor({0, 5, 11, 12, 24}, at::kInt)));
  EXPECT_EQ(longest_document(kFour, 12), 12);
  EXPECT_EQ(longest_document({{0, 5, 11}}, 12), 6);
}

TEST(Documents, HavePositionsOfTheirOwn) {
  EXPECT_TRUE(
      document_positions(kFour, 12, at::kCPU)
          .equal(at::tensor({0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
                            at::kLong)
                     .view({2, 12})));
}

}  // namespace
}  // namespace fsdp::nn
