// Whole models with bfloat16 and float16 parameters against themselves in fp32.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>

#include "model/nn/recompute.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

using testing::make_initialized;
using testing::tiny_options;

struct Gradients {
  double loss = 0;
  at::Tensor logits;
  std::map<std::string, at::Tensor> of;
};

ModelOptions options_of(const std::string& architecture) {
  auto options = tiny_options(architecture);
  options.hidden_size = 32;
  options.intermediate_size = 48;
  return options;
}

Gradients gradients_of(Stage& model) {
  at::Tensor rows = testing::token_rows(0, 4, 12, 17);
  Gradients result;
  result.logits = model.forward(rows.narrow(1, 0, 12));
  at::Tensor loss = next_token_loss(result.logits, rows.narrow(1, 1, 12).contiguous());
  // float16 needs a loss scale; 2^10 is exact.
  (loss * 1024).backward();
  result.loss = loss.item<double>();
  for (const auto& parameter : model.named_parameters()) {
    EXPECT_EQ(parameter.value().grad().scalar_type(), parameter.value().scalar_type()) << parameter.key();
    result.of[parameter.key()] = parameter.value().grad().to(at::kFloat) / 1024;
  }
  return result;
}

/// The largest distance of a gradient from its reference, relative to the reference's length.
double largest_difference(const Gradients& found, const Gradients& reference) {
  double largest = 0;
  for (const auto& [name, expected] : reference.of) {
    largest = std::max(largest, ((found.of.at(name) - expected).norm() / expected.norm()).item<double>());
  }
  return largest;
}

void cast(Stage& model, at::ScalarType type, bool keep_norms) {
  for (auto& parameter : model.named_parameters()) {
    bool norm =
        parameter.key().find("norm") != std::string::npos || parameter.key().find("ln_") != std::string::npos;
    if (!(keep_norms && norm)) parameter.value().set_data(parameter.value().to(type));
  }
}

/// Llama with another base of its rotary angles, GPT-2 with another epsilon in its norms: mistakes of the
/// size that a tolerance for low precision could hide.
std::shared_ptr<Stage> slightly_wrong(ModelOptions options) {
  options.rope_theta = 100;
  options.layer_norm_epsilon = 0.05;
  return make_initialized(options);
}

class LowPrecisionModel : public ::testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(All, LowPrecisionModel,
                         ::testing::Combine(::testing::Values("llama", "gpt2"),
                                            ::testing::Values(at::kBFloat16, at::kHalf)),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) == at::kHalf ? "_float16" : "_bfloat16");
                         });

TEST_P(LowPrecisionModel, AgreesWithFloat32WithinItsPrecision) {
  auto [architecture, type] = GetParam();
  // Both have 3 blocks and lengths of 12 to 48, over which some ten roundings add up: measured are 0.031 and
  // 0.0045 of a gradient's length.
  double tolerance = type == at::kHalf ? 0.006 : 0.04;
  auto options = options_of(architecture);
  Gradients reference = gradients_of(*make_initialized(options));
  for (bool keep_norms : {false, true}) {
    for (bool cast_buffers : {false, true}) {
      auto model = make_initialized(options);
      cast(*model, type, keep_norms);
      if (cast_buffers) {
        for (auto& buffer : model->named_buffers()) buffer.value().set_data(buffer.value().to(type));
      }
      Gradients found = gradients_of(*model);
      EXPECT_EQ(found.logits.scalar_type(), type);
      EXPECT_NEAR(found.loss, reference.loss, tolerance * reference.loss / 4);
      EXPECT_LT(largest_difference(found, reference), tolerance);
    }
  }
  EXPECT_GT(largest_difference(gradients_of(*slightly_wrong(options)), reference), 2 * tolerance);
}

TEST_P(LowPrecisionModel, IsRecomputedBitForBit) {
  auto [architecture, type] = GetParam();
  auto options = options_of(architecture);
  auto plain = make_initialized(options), recomputed = make_initialized(options);
  checkpoint_activations(*recomputed, {"block"});
  for (auto& model : {plain, recomputed}) cast(*model, type, /*keep_norms=*/true);
  Gradients expected = gradients_of(*plain), found = gradients_of(*recomputed);
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(largest_difference(found, expected), 0);
}

}  // namespace
}  // namespace fsdp::nn
