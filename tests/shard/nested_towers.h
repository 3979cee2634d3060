#pragma once

// Modules of several levels, to be sharded one by one, and their inputs.

#include <ATen/Functions.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>

#include "model/nn/stage.h"
#include "support/readable.h"

namespace fsdp::shard::nesting {

inline constexpr int64_t kWidth = 6, kBatch = 8;

/// x: [B, kWidth] -> the same; counts its calls.
struct Block final : nn::Stage {
  explicit Block(int64_t* calls = nullptr) : calls(calls) {}
  std::string type_name() const override { return "block"; }
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override {
    if (calls != nullptr) ++*calls;
    return x + out(at::gelu(in(x)));
  }
  int64_t* calls;
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kWidth, 2 * kWidth));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(2 * kWidth, kWidth));
};

struct Tower final : nn::Stage {
  explicit Tower(int64_t* calls = nullptr, int64_t* block_calls = nullptr) : calls(calls) {
    for (int i = 0; i < 2; ++i) blocks->push_back(std::make_shared<Block>(block_calls));
  }
  std::string type_name() const override { return "tower"; }
  at::Tensor compute(const at::Tensor& input, const nn::StageContext&) override {
    if (calls != nullptr) ++*calls;
    at::Tensor x = input;
    for (size_t i = 0; i < 2; ++i) x = blocks->ptr<Block>(i)->forward(x);
    return head(x);
  }
  int64_t* calls;
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kWidth));
};

/// The rows of both inputs and of the targets.
struct Batch {
  explicit Batch(int64_t step) {
    const at::Tensor all = at::arange(2 * kBatch * kWidth, at::kFloat).mul(0.7).add(step).sin();
    a = all.narrow(0, 0, kBatch * kWidth).view({kBatch, kWidth});
    b = all.narrow(0, kBatch * kWidth, kBatch * kWidth).view({kBatch, kWidth});
    targets = (a - b).mean(1, /*keepdim=*/true);
  }
  at::Tensor a, b, targets;
};

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

template <typename Module>
std::shared_ptr<Module> with_values(std::shared_ptr<Module> module) {
  at::NoGradGuard no_grad;
  for (const auto& parameter : module->named_parameters()) {
    at::Tensor tensor = parameter.value();
    if (testing::is_readable(tensor)) tensor.copy_(at::arange(tensor.numel()).sin().view_as(tensor));
  }
  return module;
}

}  // namespace fsdp::shard::nesting
