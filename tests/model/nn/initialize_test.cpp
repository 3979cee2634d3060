#include "model/nn/initialize.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/tensor/rectangle_view.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

TEST(Initialize, DependsOnSeedAndNameOnly) {
  auto options = testing::tiny_options();
  auto shallow = options;
  shallow.num_hidden_layers = 1;
  auto a = testing::make_initialized(options, 7), b = testing::make_initialized(shallow, 7);
  auto c = testing::make_initialized(options, 8);
  const char* name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_TRUE(at::equal(a->named_parameters()[name], b->named_parameters()[name]));
  EXPECT_FALSE(at::equal(a->named_parameters()[name], c->named_parameters()[name]));
  EXPECT_FALSE(
      at::equal(a->named_parameters()[name], a->named_parameters()["model.layers.0.mlp.gate_proj.weight"]));
}

TEST(Initialize, UsesTheRangeForMatricesOnesForNormsZeroForBiases) {
  auto options = testing::tiny_options("gpt2");
  options.hidden_size = 64;
  options.intermediate_size = 256;
  options.initializer_range = 0.02;
  auto model = testing::make_initialized(options);
  auto parameters = model->named_parameters();
  auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("transformer.h.0.mlp.c_fc.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("transformer.h.0.mlp.c_proj.weight"), 0.02 / std::sqrt(6.0), 0.0005);
  EXPECT_TRUE(at::equal(parameters["transformer.ln_f.weight"], at::ones({64})));
  EXPECT_TRUE(at::equal(parameters["transformer.h.0.mlp.c_fc.bias"], at::zeros({256})));
}

TEST(Initialize, MakesNormsThatAddOneZero) {
  const ModelOptions options = testing::family_options("gemma2");
  auto model = testing::make_initialized(options);
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.value().dim() == 1) {
      EXPECT_EQ(parameter.value().abs().max().item<float>(), 0) << parameter.key();
    }
  }
}

TEST(Initialize, GivesAnyElementsByThemselvesAsInTheWhole) {
  const auto options = testing::tiny_options("gpt2");
  struct Case {
    const char* name;
    std::vector<int64_t> sizes;
  };
  for (const auto& [name, sizes] :
       {Case{"a.weight", {40, 32}}, Case{"b.c_proj.weight", {40, 32}}, Case{"odd.weight", {37, 19}},
        Case{"small.weight", {3, 5}}, Case{"norm.weight", {70}}, Case{"linear.bias", {70}}}) {
    at::Tensor whole = at::empty(sizes);
    initialize_parameter(name, whole, options, 7);
    const int64_t numel = whole.numel();
    for (int64_t begin : {int64_t{0}, int64_t{1}, int64_t{13}, numel / 2, numel - 1}) {
      for (int64_t count : {int64_t{1}, int64_t{2}, int64_t{20}, int64_t{64}, numel}) {
        count = std::min(count, numel - begin);
        at::Tensor out = at::full({count}, -3.0);
        initialize_elements(name, sizes, {{begin, begin + count}}, out, options, 7);
        EXPECT_TRUE(at::equal(out, whole.view({-1}).narrow(0, begin, count)))
            << name << " from " << begin << ", " << count;
      }
    }
    if (sizes.size() < 2) continue;
    // Narrow ones, of which several rows share a group of numbers; wide ones; all columns.
    for (const int64_t rows : {sizes[0], numel / 5}) {
      if (numel % rows != 0) continue;
      const int64_t columns = numel / rows;
      const std::vector<util::Rectangle> parts = {{columns / 2, columns, rows, 0, 1},
                                                  {columns / 3, columns, rows, 1, rows / 2},
                                                  {0, columns, rows, rows / 2, rows - 1},
                                                  {1, 2, rows, rows - 1, rows}};
      at::Tensor out = at::full({util::numel_of(parts)}, -3.0);
      initialize_elements(name, sizes, parts, out, options, 7);
      util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
        EXPECT_TRUE(at::equal(values, util::rectangle_view(whole, part).flatten()))
            << name << ", rows " << part.row_begin << " to " << part.row_end << " of " << rows;
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::nn
