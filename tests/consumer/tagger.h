#pragma once

// A model that is not part of the library: torch's own encoder layers between an embedding and a head.

#include <fsdp/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include <memory>
#include <string>

class Tagger final : public fsdp::Stage {
 public:
  static constexpr int64_t kTokens = 32, kTags = 7, kWidth = 24, kLayers = 3;

  Tagger() {
    embedding_ = register_module("embedding", torch::nn::Embedding(kTokens, kWidth));
    layers_ = register_module("layers", std::make_shared<fsdp::StageList>());
    for (int64_t i = 0; i < kLayers; ++i) {
      auto options = torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(48).dropout(0.0);
      auto layer = std::make_shared<torch::nn::TransformerEncoderLayerImpl>(options);
      layers_->append(std::make_shared<EncoderStage>(std::move(layer), "block"));
    }
    head_ = register_module("head", torch::nn::Linear(kWidth, kTags));
  }
  std::string type_name() const override { return "tagger"; }

 protected:
  /// ids: [T, B] int64 -> scores: [T, B, kTags]
  at::Tensor compute(const at::Tensor& ids, const fsdp::StageContext& context) override {
    at::Tensor x = embedding_->forward(ids);
    for (const auto& layer : *layers_) x = layer->forward(x, context);
    return head_->forward(x);
  }

 private:
  using EncoderStage = fsdp::StageAdaptor<torch::nn::TransformerEncoderLayerImpl>;

  torch::nn::Embedding embedding_{nullptr};
  std::shared_ptr<fsdp::StageList> layers_;
  torch::nn::Linear head_{nullptr};
};
