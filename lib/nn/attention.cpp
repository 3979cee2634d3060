#include "nn/attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <array>
#include <optional>

#include "kernels/attention.h"
#include "kernels/fused.h"
#include "nn/key_value_cache.h"
#include "nn/rotary.h"

namespace fsdp::nn {
namespace {

/// x: [B, T, heads * head_dim] -> [B, T, heads, head_dim]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads});
}

/// x: [B, T, heads, head_dim] -> [B, T, heads * head_dim]
at::Tensor join_heads(const at::Tensor& x) {
  return x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3)});
}

/// q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads, head_dim] -> [B, T, heads, head_dim]
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Compute& compute) {
  if (compute.fused && kernels::can_attend(q)) return kernels::causal_attention(q, k, v);
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          /*attn_mask=*/std::nullopt, /*dropout_p=*/0.0,
                                          /*is_causal=*/true, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/q.size(2) != k.size(2))
      .transpose(1, 2);
}

/// The same for a stage whose context may have a cache.
at::Tensor attention_of(const Stage& stage, const std::array<at::Tensor, 3>& qkv, const Compute& compute,
                        const StageContext& context) {
  const auto& [q, k, v] = qkv;
  if (context.cache == nullptr) return causal_attention(q, k, v, compute);
  const bool first = context.cache->length() == 0;
  auto [keys, values] = context.cache->append(stage, k, v);
  return first ? causal_attention(q, k, v, compute) : attend_to_cache(q, keys, values);
}

}  // namespace

LlamaAttention::LlamaAttention(const ModelOptions& options)
    : num_heads_(options.num_attention_heads),
      num_kv_heads_(options.num_key_value_heads),
      head_dim_(options.hidden_size / options.num_attention_heads),
      compute_(options) {
  auto linear = [this](int64_t in, int64_t out) { return std::make_shared<Linear>(in, out, compute_); };
  int64_t hidden = options.hidden_size;
  q_proj_ = register_module("q_proj", linear(hidden, num_heads_ * head_dim_));
  k_proj_ = register_module("k_proj", linear(hidden, num_kv_heads_ * head_dim_));
  v_proj_ = register_module("v_proj", linear(hidden, num_kv_heads_ * head_dim_));
  o_proj_ = register_module("o_proj", linear(num_heads_ * head_dim_, hidden));
}

at::Tensor LlamaAttention::compute(const at::Tensor& x, const StageContext& context) {
  const auto qkv =
      kernels::linears(x, {q_proj_->weight(), k_proj_->weight(), v_proj_->weight()}, compute_.matmul);
  at::Tensor q = rotated(qkv[0], num_heads_, context), k = rotated(qkv[1], num_kv_heads_, context);
  at::Tensor v = split_heads(qkv[2], num_kv_heads_);
  return o_proj_->forward(join_heads(attention_of(*this, {q, k, v}, compute_, context)));
}

at::Tensor LlamaAttention::rotated(const at::Tensor& x, int64_t heads, const StageContext& context) const {
  const at::Tensor &cos = context.rotary_cos, &sin = context.rotary_sin;
  if (compute_.fused && kernels::can_fuse(x) && cos.scalar_type() == at::kFloat) {
    return kernels::rotary(split_heads(x, heads), cos, sin);
  }
  return apply_rotary(split_heads(x, heads).transpose(1, 2), cos, sin).transpose(1, 2);
}

Gpt2Attention::Gpt2Attention(const ModelOptions& options)
    : num_heads_(options.num_attention_heads), compute_(options) {
  int64_t hidden = options.hidden_size;
  c_attn_ = register_module("c_attn", std::make_shared<TransposedLinear>(hidden, 3 * hidden, compute_));
  c_proj_ = register_module("c_proj", std::make_shared<TransposedLinear>(hidden, hidden, compute_));
}

at::Tensor Gpt2Attention::compute(const at::Tensor& x, const StageContext& context) {
  auto qkv = c_attn_->forward(x).chunk(3, /*dim=*/-1);
  for (at::Tensor& part : qkv) part = split_heads(part, num_heads_);
  return c_proj_->forward(join_heads(attention_of(*this, {qkv[0], qkv[1], qkv[2]}, compute_, context)));
}

}  // namespace fsdp::nn
