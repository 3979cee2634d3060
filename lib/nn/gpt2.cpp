#include "nn/gpt2.h"

#include <ATen/ops/arange.h>

#include "nn/key_value_cache.h"
#include "util/error.h"

namespace fsdp::nn {

Gpt2Block::Gpt2Block(const ModelOptions& options) {
  auto norm = [&] {
    return std::make_shared<LayerNorm>(options.hidden_size, options.layer_norm_epsilon, Compute(options));
  };
  ln_1_ = register_module("ln_1", norm());
  attn_ = register_module("attn", std::make_shared<Gpt2Attention>(options));
  ln_2_ = register_module("ln_2", norm());
  mlp_ = register_module("mlp", std::make_shared<GeluFeedForward>(options));
}

at::Tensor Gpt2Block::compute(const at::Tensor& x, const StageContext& context) {
  const at::Tensor attention = attn_->forward(ln_1_->forward(x), context);
  auto [attended, normed] = ln_2_->forward_with(x, attention);
  return attended + mlp_->forward(normed, context);
}

Gpt2::Gpt2(const ModelOptions& options) : max_positions_(options.max_position_embeddings) {
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

at::Tensor Gpt2::compute(const at::Tensor& ids, const StageContext& context) {
  if (ids.size(1) > max_positions_) {
    util::fail(
        util::ErrorKind::kUsage, "a sequence of ", ids.size(1), " tokens is longer than the ", max_positions_,
        " positions of the model; raise model.max_position_embeddings or shorten data.sequence_length");
  }
  KeyValueCache* cache = context.cache;
  if (cache != nullptr) cache->require_room(ids.size(1));
  const int64_t first = cache != nullptr ? cache->length() : 0;
  at::Tensor positions = at::arange(first, first + ids.size(1), ids.options());
  at::Tensor x = wte_->forward(ids, context) + wpe_->forward(positions, context);
  for (const auto& block : *h_) x = block->forward(x, context);
  if (cache != nullptr) cache->advance(ids.size(1));
  if (context.only_last) x = x.narrow(1, x.size(1) - 1, 1);
  return lm_head_->forward(ln_f_->forward(x), context);
}

}  // namespace fsdp::nn
