// An encoder and a decoder that attends to the encoder's output: torch's own transformer layers as units. The
// decoder layers have several inputs, one of which, the encoder's output (memory), is an input of each layer.

#include <fsdp/module.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include "training.h"

namespace {

constexpr int64_t kTokens = 16, kWidth = 24, kLength = 6;

/// The model's input: a struct, so that calls name its parts. Shapes: [T, B] int64.
struct Request {
  at::Tensor source, target;

  template <typename Visit>
  void visit_tensors(Visit&& visit) {
    visit(source);
    visit(target);
  }
};

/// Returns scores [T, B, kTokens] and the memory [T, B, kWidth].
struct TranslatorImpl : torch::nn::Module {
  using EncoderLayer = fsdp::Hooked<torch::nn::TransformerEncoderLayerImpl>;
  using DecoderLayer = fsdp::Hooked<torch::nn::TransformerDecoderLayerImpl>;

  TranslatorImpl() {
    for (const std::string layer : {"0", "1"}) {
      const torch::nn::TransformerEncoderLayerOptions encoder(kWidth, 4);
      const torch::nn::TransformerDecoderLayerOptions decoder(kWidth, 4);
      encoders.push_back(register_module(
          "encoder" + layer,
          EncoderLayer(torch::nn::TransformerEncoderLayerOptions(encoder).dim_feedforward(48).dropout(0))));
      decoders.push_back(register_module(
          "decoder" + layer,
          DecoderLayer(torch::nn::TransformerDecoderLayerOptions(decoder).dim_feedforward(48).dropout(0))));
    }
  }

  std::tuple<at::Tensor, at::Tensor> forward(const Request& request) {
    at::Tensor memory = place(request.source);
    for (auto& layer : encoders) memory = layer(memory, at::Tensor(), at::Tensor());
    const at::Tensor later = at::full({kLength, kLength}, -INFINITY).triu(1);
    at::Tensor x = place(request.target);
    for (auto& layer : decoders) {
      x = layer(x, memory, later, at::Tensor(), at::Tensor(), at::Tensor());
    }
    return {head(x), memory};
  }

  at::Tensor place(const at::Tensor& ids) {
    return tokens(ids) + positions(at::arange(ids.size(0))).unsqueeze(1);
  }

  fsdp::Hooked<torch::nn::EmbeddingImpl> tokens =
      register_module("tokens", fsdp::Hooked<torch::nn::EmbeddingImpl>(kTokens, kWidth));
  torch::nn::Embedding positions = register_module("positions", torch::nn::Embedding(kLength, kWidth));
  std::vector<EncoderLayer> encoders;
  std::vector<DecoderLayer> decoders;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, kTokens));
};

}  // namespace

int main() {
  torch::manual_seed(1);  // the same first weights on every rank
  fsdp::Hooked<TranslatorImpl> translator;
  return examples::train(translator, [&](int64_t first, int64_t rows, int64_t) {
    // The target is the reversed source.
    const at::Tensor source =
        (at::arange(kLength + 1).view({-1, 1}) * 5 + at::arange(first, first + rows) * 3) % kTokens;
    const at::Tensor backwards = source.flip(0);
    const auto [scores, memory] = translator(
        Request{.source = source.narrow(0, 0, kLength), .target = backwards.narrow(0, 0, kLength)});
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(scores.flatten(0, 1), backwards.narrow(0, 1, kLength).flatten());
    return loss + 1e-3 * memory.square().mean();  // both results have gradients
  });
}
