// A convolutional net with residual blocks: each block is a unit. Group norms compute their statistics within
// a sample, so the ranks need not exchange them.

#include <fsdp/module.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include "training.h"

namespace {

/// x: [B, channels, H, W] -> the same
struct ResidualBlockImpl : torch::nn::Module {
  explicit ResidualBlockImpl(int64_t channels)
      : first(register_module("first", torch::nn::Conv2d(convolution(channels)))),
        second(register_module("second", torch::nn::Conv2d(convolution(channels)))),
        norm(register_module("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, channels)))) {}

  at::Tensor forward(const at::Tensor& x) { return x + second(at::relu(first(norm(x)))); }

  static torch::nn::Conv2dOptions convolution(int64_t channels) {
    return torch::nn::Conv2dOptions(channels, channels, 3).padding(1);
  }

  torch::nn::Conv2d first, second;
  torch::nn::GroupNorm norm;
};

/// images: [B, 1, 12, 12] -> scores: [B, 10]
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), fsdp::Hooked<ResidualBlockImpl>(16)));
    }
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = stem(images);
    for (auto& block : blocks) x = block(x);
    return head(x.mean({2, 3}));
  }

  torch::nn::Conv2d stem =
      register_module("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).stride(2)));
  std::vector<fsdp::Hooked<ResidualBlockImpl>> blocks;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16, 10));
};

}  // namespace

int main() {
  torch::manual_seed(1);  // the same first weights on every rank
  fsdp::Hooked<NetImpl> net;
  return examples::train(net, [&](int64_t first, int64_t rows, int64_t) {
    // Images of waves; the class is their frequency.
    const at::Tensor row = at::arange(first, first + rows).view({rows, 1, 1, 1});
    const at::Tensor at_x = at::arange(12).view({1, 1, 1, 12}), at_y = at::arange(12).view({1, 1, 12, 1});
    const at::Tensor images = at::sin((row + 1) * at_x * 0.35) * at::cos((row + 1) * at_y * 0.2);
    return torch::nn::functional::cross_entropy(net(images), row.flatten());
  });
}
