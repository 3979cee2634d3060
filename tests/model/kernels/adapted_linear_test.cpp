// Frozen linear layers with adapters as one node, against composed operations.

#include "model/kernels/adapted_linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/kernels/block_product.h"
#include "model/kernels/meta.h"
#include "support/gradient_sinks.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kAdaptedWidth = 48, kAdapterRank = 4;
constexpr double kAdapterScale = 0.5;

struct AdaptedCase {
  std::string name;
  at::ScalarType type = at::kFloat;
  int64_t tokens = 5;  ///< of each of two rows
  bool transposed = false;
  std::optional<Quantization> quantization = std::nullopt;
  double tolerance = 1e-5;
};

/// Layers of 32, 16 and 64 outputs.
struct AdaptedLayers {
  explicit AdaptedLayers(const AdaptedCase& setting)
      : form{setting.quantization, setting.transposed, kAdapterScale, matmul_by_name("auto")} {
    at::manual_seed(5);
    for (const int64_t out : {32, 16, 64}) {
      const at::Tensor matrix = (at::randn({out, kAdaptedWidth}) * 0.2).to(setting.type);
      AdaptedWeight layer{
          .weight = setting.transposed ? matrix.t().contiguous() : matrix,
          .a = (at::randn({kAdapterRank, kAdaptedWidth}) * 0.2).to(setting.type).requires_grad_(),
          .b = (at::randn({out, kAdapterRank}) * 0.2).to(setting.type).requires_grad_()};
      matrices.push_back(matrix.to(at::kFloat));
      if (setting.quantization) {
        layer.weight = quantize(matrix, *setting.quantization);
        matrices.back() =
            dequantize({layer.weight, out, kAdaptedWidth, *setting.quantization}, 0, out, setting.type)
                .to(at::kFloat);
      }
      layers.push_back(layer);
      gradients.push_back(at::randn({2, setting.tokens, out}).to(setting.type));
    }
    x = at::randn({2, setting.tokens, kAdaptedWidth}).to(setting.type).requires_grad_();
  }

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = {x};
    for (const AdaptedWeight& layer : layers) all.insert(all.end(), {layer.a, layer.b});
    return all;
  }
  void backward(const std::vector<at::Tensor>& ys) const {
    at::Tensor loss = at::zeros({});
    for (size_t i = 0; i < ys.size(); ++i)
      loss = loss + (ys[i].to(at::kFloat) * gradients[i].to(at::kFloat)).sum();
    loss.backward();
  }

  AdaptedForm form;
  std::vector<AdaptedWeight> layers;
  std::vector<at::Tensor> matrices, gradients;  ///< matrices: W in fp32
  at::Tensor x;
};

void expect_norm_of_difference(const at::Tensor& found, const at::Tensor& expected, double tolerance,
                               const std::string& what) {
  ASSERT_TRUE(found.defined()) << what;
  const double difference =
      (found.to(at::kFloat) - expected).norm().item<double>() / expected.norm().item<double>();
  EXPECT_LT(difference, tolerance) << what;
}

class AdaptedLinears : public ::testing::TestWithParam<AdaptedCase> {};

TEST_P(AdaptedLinears, AreTheProductsAndWhatTheAdaptersAdd) {
  if (!has_small_products(GetParam().type)) GTEST_SKIP() << "no small products of the type on this CPU";
  const AdaptedLayers found(GetParam()), expected(GetParam());
  ASSERT_TRUE(can_adapt(found.x, found.layers[0], found.form));
  const std::vector<at::Tensor> ys = adapted_linears(found.x, found.layers, found.form);
  found.backward(ys);

  // The same in fp32 of the same numbers.
  std::vector<at::Tensor> leaves, results;
  for (const at::Tensor& leaf : expected.leaves())
    leaves.push_back(leaf.detach().to(at::kFloat).requires_grad_());
  for (size_t i = 0; i < 3; ++i) {
    results.push_back(at::linear(leaves[0], expected.matrices[i]) +
                      at::linear(at::linear(leaves[0], leaves[2 * i + 1]), leaves[2 * i + 2]) *
                          kAdapterScale);
  }
  expected.backward(results);
  const double tolerance = GetParam().tolerance;
  for (size_t i = 0; i < 3; ++i)
    expect_norm_of_difference(ys[i], results[i], tolerance, "y" + std::to_string(i));
  for (size_t i = 0; i < leaves.size(); ++i) {
    expect_norm_of_difference(found.leaves()[i].grad(), leaves[i].grad(), tolerance,
                              "gradient " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, AdaptedLinears,
    ::testing::Values(AdaptedCase{"float"}, AdaptedCase{.name = "float_many_tokens", .tokens = 70},
                      AdaptedCase{.name = "transposed", .tokens = 70, .transposed = true},
                      AdaptedCase{.name = "bf16", .type = at::kBFloat16, .tolerance = 2e-2},
                      AdaptedCase{
                          .name = "bf16_many_tokens", .type = at::kBFloat16, .tokens = 70, .tolerance = 2e-2},
                      AdaptedCase{.name = "nf4", .tokens = 70, .quantization = Quantization::kNf4},
                      AdaptedCase{.name = "int8_bf16",
                                  .type = at::kBFloat16,
                                  .tokens = 70,
                                  .quantization = Quantization::kInt8,
                                  .tolerance = 2e-2}),
    [](const auto& info) { return info.param.name; });

TEST(AdaptedLinear, AddsGradientsToThePlacesOfAdaptersWhateverTheInputNeeds) {
  for (const bool input_needs : {true, false}) {
    const AdaptedLayers layers({"float"}), plain({"float"});
    plain.backward(adapted_linears(plain.x, plain.layers, plain.form));
    layers.x.requires_grad_(input_needs);
    std::vector<TestSink*> sinks;
    for (const AdaptedWeight& layer : layers.layers) {
      sinks.insert(sinks.end(), {&TestSink::attach(layer.a), &TestSink::attach(layer.b)});
    }
    for (int times = 0; times < 2; ++times)
      layers.backward(adapted_linears(layers.x, layers.layers, layers.form));
    for (size_t i = 0; i < sinks.size(); ++i) {
      expect_norm_of_difference(sinks[i]->memory, 2 * plain.leaves()[i + 1].grad(), 1e-5,
                                "adapter " + std::to_string(i));
    }
    EXPECT_EQ(layers.x.grad().defined(), input_needs);
  }
}

TEST(AdaptedLinear, RefusesOperandsOfTwoTypesAndTrainedWeights) {
  AdaptedLayers layers({"float"});
  EXPECT_FALSE(can_adapt(layers.x.to(at::kBFloat16), layers.layers[0], layers.form));
  layers.layers[0].weight.requires_grad_();
  EXPECT_FALSE(can_adapt(layers.x, layers.layers[0], layers.form));
}

}  // namespace
}  // namespace fsdp::kernels
