#include "nn/llama.h"

#include "nn/dropout.h"
#include "nn/key_value_cache.h"

namespace fsdp::nn {

LlamaBlock::LlamaBlock(const ModelOptions& options) : hidden_dropout_(options.hidden_dropout) {
  auto norm = [&] {
    return std::make_shared<RmsNorm>(options.hidden_size, options.rms_norm_eps, Compute(options));
  };
  self_attn_ = register_module("self_attn", std::make_shared<LlamaAttention>(options));
  mlp_ = register_module("mlp", std::make_shared<GatedFeedForward>(options));
  input_layernorm_ = register_module("input_layernorm", norm());
  post_attention_layernorm_ = register_module("post_attention_layernorm", norm());
}

at::Tensor LlamaBlock::compute(const at::Tensor& x, const StageContext& context) {
  const at::Tensor attention = dropout(self_attn_->forward(input_layernorm_->forward(x), context),
                                       hidden_dropout_, DropoutPlace::kAttentionOutput, context);
  auto [attended, normed] = post_attention_layernorm_->forward_with(x, attention);
  return attended +
         dropout(mlp_->forward(normed, context), hidden_dropout_, DropoutPlace::kFeedForwardOutput, context);
}

Llama::Llama(const ModelOptions& options) : embedding_dropout_(options.embedding_dropout) {
  auto model = register_module("model", std::make_shared<torch::nn::Module>());
  embed_tokens_ = model->register_module(
      "embed_tokens", std::make_shared<Embedding>(options.vocab_size, options.hidden_size, Compute(options)));
  layers_ = model->register_module("layers", std::make_shared<StageList>());
  for (int64_t i = 0; i < options.num_hidden_layers; ++i)
    layers_->append(std::make_shared<LlamaBlock>(options));
  norm_ = model->register_module(
      "norm", std::make_shared<RmsNorm>(options.hidden_size, options.rms_norm_eps, Compute(options)));
  rotary_emb_ = model->register_module("rotary_emb", std::make_shared<RotaryTable>(options));
  lm_head_ = register_module(
      "lm_head", options.tie_word_embeddings
                     ? std::make_shared<Head>(embed_tokens_->weight(), Compute(options))
                     : std::make_shared<Head>(options.hidden_size, options.vocab_size, Compute(options)));
}

at::Tensor Llama::compute(const at::Tensor& ids, const StageContext& given) {
  StageContext context = given;
  const int64_t tokens = ids.size(1);
  if (KeyValueCache* cache = given.cache) {
    cache->require_room(tokens);
    std::tie(context.rotary_cos, context.rotary_sin) =
        rotary_emb_->angles_from(cache->length(), tokens, ids.device());
  } else {
    std::tie(context.rotary_cos, context.rotary_sin) = rotary_emb_->angles(tokens, ids.device());
  }
  at::Tensor x =
      dropout(embed_tokens_->forward(ids, context), embedding_dropout_, DropoutPlace::kEmbedding, context);
  for (const auto& layer : *layers_) {
    x = layer->forward(x, context);
    ++context.layer;
  }
  if (given.cache != nullptr) given.cache->advance(tokens);
  if (given.only_last) x = x.narrow(1, tokens - 1, 1);
  return lm_head_->forward(norm_->forward(x), context);
}

}  // namespace fsdp::nn
