#include "nn/attention.h"

#include <ATen/Functions.h>

#include <cmath>
#include <limits>
#include <optional>

#include "kernels/attention.h"
#include "kernels/device_attention.h"
#include "kernels/flash_attention.h"
#include "kernels/fused.h"
#include "kernels/joined_linear.h"
#include "kernels/meta.h"
#include "nn/documents.h"
#include "nn/key_value_cache.h"
#include "nn/rotary.h"
#include "parallel/context_attention.h"
#include "util/error.h"
#include "util/hash.h"

namespace fsdp::nn {
namespace {

/// x: [B, T, heads * head_dim] -> [B, T, heads, head_dim]
at::Tensor split_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), x.size(2) / head_dim, head_dim});
}

/// x: [B, T, heads, head_dim] -> [B, T, heads * head_dim]
at::Tensor join_heads(const at::Tensor& x) {
  return x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3)});
}

using Heads = Attention::Heads;

/// A row is one whole text, from its first token on, of which nothing is dropped.
bool is_plain(double p, const StageContext& context) {
  return !(p > 0 && context.dropout) && !context.documents && !context.cut && context.cache == nullptr;
}

/// The keys or values of each query's head: [B, T, kv_heads, head_dim] -> [B, T, kv_heads * group, head_dim]
at::Tensor repeated(const at::Tensor& x, int64_t group) {
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

/// Materialises the attention weights, which the kernels do not, to drop some of them.
at::Tensor attention_with_dropout(const Heads& heads, double p, const StageContext& context) {
  const int64_t group = heads.q.size(2) / heads.k.size(2), length = heads.q.size(1);
  const at::Tensor q = heads.q.transpose(1, 2);
  const at::Tensor k = repeated(heads.k, group).transpose(1, 2), v = repeated(heads.v, group).transpose(1, 2);
  const at::Tensor later = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  const at::Tensor weights = scores.masked_fill(later, -std::numeric_limits<double>::infinity())
                                 .softmax(-1, at::kFloat)
                                 .to(v.scalar_type());
  const int64_t first = heads.first * length * length;
  const at::Tensor dropped =
      dropout(weights, p, DropoutPlace::kAttentionScores, context, {.begins = {first}});
  return join_heads(at::matmul(dropped, v).transpose(1, 2));
}

/// -> [B, T, heads * head_dim]
at::Tensor causal_attention(const Heads& heads, const Compute& compute, double p,
                            const StageContext& context);

/// A token attends to its own document only. -> [B, T, heads * head_dim]
at::Tensor attention_within_documents(const Heads& heads, const Compute& compute, double p,
                                      const StageContext& context) {
  const DocumentStarts& documents = *context.documents;
  FSDP_CHECK(static_cast<int64_t>(documents.size()) == heads.q.size(0), documents.size(),
             " rows of documents");
  const int64_t length = heads.q.size(1);
  const auto queries = heads.q.split(1), keys = heads.k.split(1), values = heads.v.split(1);
  std::vector<at::Tensor> rows;
  for (size_t row = 0; row < documents.size(); ++row) {
    const std::vector<int64_t> lengths = document_lengths(documents[row], length);
    // Splits, not slices: backward then assembles all gradients in one pass.
    const auto q = queries[row].split_with_sizes(lengths, 1), k = keys[row].split_with_sizes(lengths, 1),
               v = values[row].split_with_sizes(lengths, 1);
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < lengths.size(); ++i) {
      StageContext inside = context;
      inside.documents = nullptr;
      if (inside.dropout) {
        inside.dropout->key = util::mix64(inside.dropout->key + static_cast<uint64_t>(i));
        inside.dropout->first_row += static_cast<int64_t>(row);
      }
      parts.push_back(
          causal_attention({.q = q[i], .k = k[i], .v = v[i], .first = heads.first}, compute, p, inside));
    }
    rows.push_back(parts.size() == 1 ? parts.front() : at::cat(parts, 1));
  }
  return at::cat(rows, 0);
}

kernels::PackedDocuments packed(const StageContext& context, const at::Tensor& q) {
  const int64_t length = q.size(1);
  return {.bounds = context.document_bounds.defined()
                        ? context.document_bounds
                        : document_bounds(*context.documents, length, q.device()),
          .longest = longest_document(*context.documents, length)};
}

at::Tensor causal_attention(const Heads& heads, const Compute& compute, double p,
                            const StageContext& context) {
  const at::Tensor &q = heads.q, &k = heads.k, &v = heads.v;
  const bool drops = p > 0 && context.dropout, has_cache = context.cache != nullptr;
  if (context.cut) {
    FSDP_CHECK(!drops, "dropout of the weights of a cut sequence");
    return join_heads(parallel::context_attention(q, k, v,
                                                  {.cut = context.cut,
                                                   .documents = context.documents,
                                                   .matmul = compute.matmul,
                                                   .fused = compute.fused}));
  }
  if (!drops && (context.documents || has_cache) && kernels::can_use_flash_attention(q, k, v)) {
    return join_heads(context.documents ? kernels::flash_attention(q, k, v, packed(context, q))
                                        : kernels::flash_attention_to_earlier(q, k, v));
  }
  if (context.documents) return attention_within_documents(heads, compute, p, context);
  if (drops) return attention_with_dropout(heads, p, context);
  if (compute.fused && kernels::can_attend(q)) {
    return join_heads(kernels::causal_attention(q, k, v, compute.matmul));
  }
  if (at::Tensor attended = kernels::device_attention(q, k, v); attended.defined()) return attended;
  // libtorch's only fused kernels for fp32 on GPUs know no grouped queries (can_use_mem_efficient_attention()
  // in its sdp_utils.cpp); without them, all T x T weights would exist.
  const bool repeats = kernels::is_for_cuda(q) && q.scalar_type() == at::kFloat;
  const int64_t group = repeats ? q.size(2) / k.size(2) : 1;
  const at::Tensor queries = q.transpose(1, 2), keys = repeated(k, group).transpose(1, 2),
                   values = repeated(v, group).transpose(1, 2);
  const at::Tensor attended =
      q.is_meta() ? kernels::meta_attention(queries, keys, values)
                  : at::scaled_dot_product_attention(queries, keys, values,
                                                     /*attn_mask=*/std::nullopt, /*dropout_p=*/0.0,
                                                     /*is_causal=*/true, /*scale=*/std::nullopt,
                                                     /*enable_gqa=*/queries.size(1) != keys.size(1));
  return join_heads(attended.transpose(1, 2));
}

}  // namespace

Attention::Attention(const ModelOptions& options)
    : head_dim_(head_width(options)), dropout_(options.attention_dropout), compute_(options) {
  const int64_t hidden = options.hidden_size;
  const auto linear = [this](const char* name, int64_t in, int64_t out, const LinearForm& form) {
    return register_module(name, std::make_shared<Linear>(in, out, compute_, form));
  };
  if (is_gpt2(options)) {
    qkv_ = linear("c_attn", hidden, 3 * hidden, {.transposed = true});
    output_ = linear("c_proj", hidden, hidden, {.transposed = true});
    return;
  }
  const int64_t queries = query_width(options), keys = key_width(options);
  const LinearForm form{.biased = options.attention_bias || options.qkv_bias};
  q_ = linear("q_proj", hidden, queries, form);
  k_ = linear("k_proj", hidden, keys, form);
  v_ = linear("v_proj", hidden, keys, form);
  output_ = linear("o_proj", queries, hidden, {.biased = options.attention_bias});
}

at::Tensor Attention::compute(const at::Tensor& x, const StageContext& context) {
  Heads heads;
  if (qkv_) {
    const auto qkv = qkv_->forward(x, &context).chunk(3, /*dim=*/-1);
    heads = {split_heads(qkv[0], head_dim_), split_heads(qkv[1], head_dim_), split_heads(qkv[2], head_dim_)};
  } else {
    heads = rotated_heads(x, context);
  }
  if (heads.attended.defined()) return output_->forward(heads.attended, &context);
  if (const auto& parallel = (qkv_ ? qkv_ : q_)->parallel()) {
    heads.first = parallel->ranks.rank() * heads.q.size(2);
  }
  if (context.cache == nullptr) {
    return output_->forward(causal_attention(heads, compute_, dropout_, context), &context);
  }
  const bool first = context.cache->length() == 0;
  const auto [keys, values] = context.cache->append(*this, heads.k, heads.v);
  return output_->forward(first ? causal_attention(heads, compute_, dropout_, context)
                                : join_heads(attend_to_cache(heads.q, keys, values)),
                          &context);
}

Attention::Heads Attention::rotated_heads(const at::Tensor& x, const StageContext& context) const {
  const at::Tensor &cos = context.rotary_cos, &sin = context.rotary_sin;
  if (cos.scalar_type() == at::kFloat) {
    if (const at::Tensor joined = forward_joined(x, {q_.get(), k_.get(), v_.get()}, &context);
        joined.defined()) {
      const kernels::JoinedHeads heads{q_->weight().size(0) / head_dim_, k_->weight().size(0) / head_dim_};
      if (is_plain(dropout_, context)) {
        if (at::Tensor y = kernels::rotary_attention(joined, heads, cos, sin); y.defined())
          return {.attended = y};
      }
      const auto [q, k, v] = kernels::joined_rotary(joined, heads, cos, sin);
      return {q, k, v};
    }
  }
  const auto qkv = forward_all(x, {q_.get(), k_.get(), v_.get()}, &context);
  return {rotated(qkv[0], context), rotated(qkv[1], context), split_heads(qkv[2], head_dim_)};
}

at::Tensor Attention::rotated(const at::Tensor& x, const StageContext& context) const {
  const at::Tensor &cos = context.rotary_cos, &sin = context.rotary_sin;
  if (compute_.fused && kernels::can_fuse(x) && cos.scalar_type() == at::kFloat) {
    return kernels::rotary(split_heads(x, head_dim_), cos, sin);
  }
  return apply_rotary(split_heads(x, head_dim_).transpose(1, 2), cos, sin).transpose(1, 2);
}

}  // namespace fsdp::nn
