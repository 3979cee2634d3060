#include "nn/gpt2.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>

#include "nn/dropout.h"
#include "nn/key_value_cache.h"
#include "util/error.h"

namespace fsdp::nn {

Gpt2Block::Gpt2Block(const ModelOptions& options) : hidden_dropout_(options.hidden_dropout) {
  auto norm = [&] {
    return std::make_shared<LayerNorm>(options.hidden_size, options.layer_norm_epsilon, Compute(options));
  };
  ln_1_ = register_module("ln_1", norm());
  attn_ = register_module("attn", std::make_shared<Gpt2Attention>(options));
  ln_2_ = register_module("ln_2", norm());
  mlp_ = register_module("mlp", std::make_shared<GeluFeedForward>(options));
}

at::Tensor Gpt2Block::compute(const at::Tensor& x, const StageContext& context) {
  const at::Tensor attention = dropout(attn_->forward(ln_1_->forward(x), context), hidden_dropout_,
                                       DropoutPlace::kAttentionOutput, context);
  auto [attended, normed] = ln_2_->forward_with(x, attention);
  return attended +
         dropout(mlp_->forward(normed, context), hidden_dropout_, DropoutPlace::kFeedForwardOutput, context);
}

Gpt2::Gpt2(const ModelOptions& options)
    : max_positions_(options.max_position_embeddings), embedding_dropout_(options.embedding_dropout) {
  auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>());
  wte_ = transformer->register_module(
      "wte", std::make_shared<Embedding>(options.vocab_size, options.hidden_size, Compute(options)));
  wpe_ = transformer->register_module(
      "wpe", std::make_shared<Embedding>(max_positions_, options.hidden_size, Compute(options)));
  h_ = transformer->register_module("h", std::make_shared<StageList>());
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) h_->append(std::make_shared<Gpt2Block>(options));
  ln_f_ = transformer->register_module(
      "ln_f", std::make_shared<LayerNorm>(options.hidden_size, options.layer_norm_epsilon, Compute(options)));
  lm_head_ = register_module(
      "lm_head", options.tie_word_embeddings
                     ? std::make_shared<Head>(wte_->weight(), Compute(options))
                     : std::make_shared<Head>(options.hidden_size, options.vocab_size, Compute(options)));
}

namespace {

/// positions: [T] -> [B, T], from 0 at the beginning of each document.
at::Tensor positions_in(const DocumentStarts& documents, const at::Tensor& positions) {
  std::vector<at::Tensor> rows;
  for (const std::vector<int64_t>& starts : documents) {
    at::Tensor row = positions.clone();
    for (int64_t start : starts) {
      row.narrow(0, start, row.size(0) - start).copy_(positions.narrow(0, 0, row.size(0) - start));
    }
    rows.push_back(row);
  }
  return at::stack(rows);
}

}  // namespace

at::Tensor Gpt2::compute(const at::Tensor& ids, const StageContext& given) {
  if (ids.size(1) > max_positions_) {
    util::fail(
        util::ErrorKind::kUsage, "a sequence of ", ids.size(1), " tokens is longer than the ", max_positions_,
        " positions of the model; raise model.max_position_embeddings or shorten data.sequence_length");
  }
  KeyValueCache* cache = given.cache;
  if (cache != nullptr) cache->require_room(ids.size(1));
  const int64_t first = cache != nullptr ? cache->length() : 0;
  at::Tensor positions = at::arange(first, first + ids.size(1), ids.options());
  if (given.documents) positions = positions_in(*given.documents, positions);
  StageContext context = given;
  at::Tensor x = dropout(wte_->forward(ids, context) + wpe_->forward(positions, context), embedding_dropout_,
                         DropoutPlace::kEmbedding, context);
  for (const auto& block : *h_) {
    x = block->forward(x, context);
    ++context.layer;
  }
  if (cache != nullptr) cache->advance(ids.size(1));
  if (given.only_last) x = x.narrow(1, x.size(1) - 1, 1);
  return lm_head_->forward(ln_f_->forward(x), context);
}

}  // namespace fsdp::nn
