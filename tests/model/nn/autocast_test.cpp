// The models of this library in regions of autocast: their products are 16 bits there, as libtorch's are.

#include "base/tensor/autocast.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/util/matrix_units.h"
#include "model/nn/recompute.h"
#include "support/autocast_region.h"
#include "support/tiny_models.h"

namespace fsdp::nn::autocasting {
namespace {

using testing::AutocastRegion;

struct Pass {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

struct Setting {
  std::string architecture, matmul = "auto";
  bool fused = true, recomputes = false;
};

/// In a region of this type; nullopt: in none. Backward is outside.
Pass pass(const Setting& setting, std::optional<at::ScalarType> region) {
  at::set_num_threads(1);  // of products this small, teams of threads cost more than they save
  ModelOptions options = testing::tiny_options(setting.architecture);
  options.hidden_size = 64;
  options.intermediate_size = 96;
  options.max_position_embeddings = 32;
  options.fused_kernels = setting.fused;
  options.matmul = setting.matmul;
  auto model = testing::make_initialized(options);
  if (setting.recomputes) checkpoint_activations(*model, {"block"});
  const at::Tensor rows = testing::token_rows(0, 6, 32, options.vocab_size);
  const at::Tensor ids = rows.narrow(1, 0, 32), targets = rows.narrow(1, 1, 32).contiguous();
  at::Tensor loss;
  {
    std::optional<AutocastRegion> open;
    if (region) open.emplace(*region);
    EXPECT_EQ(model->forward(ids).scalar_type(), region.value_or(at::kFloat));
    loss = loss_of(*model, ids, targets);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
  }
  loss.backward();
  Pass result{.loss = loss.item<double>(), .gradients = {}};
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_EQ(parameter.value().grad().scalar_type(), at::kFloat) << parameter.key();
    result.gradients[parameter.key()] = parameter.value().grad();
  }
  return result;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(AutocastDecoders, ComputeProductsIn16BitsWithEveryKernel) {
  std::vector<std::string> libraries = {"mkl", "onednn"};
  if (util::has_matrix_unit()) libraries.push_back("amx");
  for (const char* architecture : {"llama", "gpt2"}) {
    const Pass exact = pass({architecture}, std::nullopt);
    for (const auto& matmul : libraries) {
      for (bool fused : {true, false}) {
        for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
          const std::string what = concat(architecture, matmul, fused, c10::toString(type));
          const Pass found = pass({architecture, matmul, fused}, type);
          EXPECT_NE(found.loss, exact.loss) << what;
          EXPECT_NEAR(found.loss, exact.loss, 0.05 * exact.loss) << what;
          for (const auto& [name, gradient] : exact.gradients) {
            EXPECT_LE(relative_difference(found.gradients.at(name), gradient), 0.2) << what << name;
          }
        }
      }
    }
  }
}

// Backward is outside of the region.
TEST(AutocastDecoders, RecomputationIsInTheRegionOfForward) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool fused : {true, false}) {
      const Pass kept = pass({architecture, "auto", fused, /*recomputes=*/false}, at::kBFloat16),
                 recomputed = pass({architecture, "auto", fused, /*recomputes=*/true}, at::kBFloat16);
      EXPECT_EQ(recomputed.loss, kept.loss);
      for (const auto& [name, gradient] : kept.gradients) {
        EXPECT_TRUE(at::equal(recomputed.gradients.at(name), gradient)) << architecture << fused << name;
      }
    }
  }
}

TEST(AutocastRecompute, UsesNoCopyThatLibtorchKeepsOfAWeight) {
  testing::MatrixStage stage(4, 4);
  stage.attach(std::make_shared<Recompute>());
  const AutocastRegion region;
  const at::Tensor x = at::ones({2, 4}), before = at::linear(x, stage.weight());  // makes the copy
  {
    at::NoGradGuard no_grad;
    stage.weight().mul_(2);
  }
  EXPECT_TRUE(at::equal(at::linear(x, stage.weight()), before)) << "or the test shows nothing";
  const at::Tensor y = stage.forward(x);
  EXPECT_TRUE(at::equal(y, (before * 2).tanh()));
  y.sum().backward();
  const at::Tensor slope =
      (1 - (before * 2).tanh().to(at::kFloat).square()).sum(0).unsqueeze(1).expand({4, 4});
  EXPECT_TRUE(at::allclose(stage.weight().grad(), slope, 0.05, 0.05));
}

}  // namespace
}  // namespace fsdp::nn::autocasting
