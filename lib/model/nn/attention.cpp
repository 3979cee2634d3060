#include "model/nn/attention.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "model/kernels/device_attention.h"
#include "model/kernels/flash_attention.h"
#include "model/kernels/fused.h"
#include "model/kernels/joined_linear.h"
#include "model/kernels/meta.h"
#include "model/nn/documents.h"
#include "model/nn/key_value_cache.h"
#include "model/nn/rotary.h"
#include "model/parallel/context_attention.h"
#include "model/parallel/cut_sequence.h"

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

/// 0: that of the kernels.
double score_scale(const ModelOptions& options) {
  if (options.attention_multiplier > 0) return options.attention_multiplier;
  const int64_t scalar = options.query_pre_attn_scalar;
  return scalar == 0 || scalar == head_width(options) ? 0 : 1 / std::sqrt(static_cast<double>(scalar));
}

bool has_documents(const StageContext& context) {
  return context.documents || context.document_bounds.defined();
}

/// A row is one whole text, from its first token on, of which nothing is dropped.
bool is_plain(double p, const StageContext& context) {
  return !(p > 0 && context.dropout) && !has_documents(context) && !context.cut && context.cache == nullptr;
}

/// The keys or values of each query's head: [B, T, kv_heads, head_dim] -> [B, T, kv_heads * group, head_dim]
at::Tensor repeated(const at::Tensor& x, int64_t group) {
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

/// Options of a layer for computing attention.
struct AttentionOptions {
  kernels::AttentionForm scores;
  double dropout;
  Compute compute;
  bool recomputed = false;  ///< backward computes the result again
};

/// Some queries of a row and the keys that they see, as numbers of tokens.
struct Span {
  int64_t first, queries, first_key, keys;
};

/// Materialises the weights of these queries.
at::Tensor composed_span(const Heads& heads, const Span& span, const AttentionOptions& way,
                         const StageContext& context) {
  const int64_t group = heads.q.size(2) / heads.k.size(2), length = heads.q.size(1),
                window = way.scores.window;
  const auto seen = [&](const at::Tensor& x) {
    return repeated(x.narrow(1, span.first_key, span.keys), group).transpose(1, 2);
  };
  const at::Tensor q = heads.q.narrow(1, span.first, span.queries).transpose(1, 2), k = seen(heads.k),
                   v = seen(heads.v);
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) * way.scores.scale_of(q.size(-1));
  if (way.scores.cap > 0) scores = (scores.to(at::kFloat) / way.scores.cap).tanh() * way.scores.cap;
  const at::Tensor all = at::ones({span.queries, span.keys}, q.options().dtype(at::kBool));
  const int64_t diagonal = span.first - span.first_key;
  at::Tensor hidden = all.triu(diagonal + 1);
  if (window > 0) hidden = hidden.logical_or(all.tril(diagonal - window));
  const at::Tensor weights = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity())
                                 .softmax(-1, at::kFloat)
                                 .to(v.scalar_type());
  const int64_t first = (heads.first * length + span.first * heads.q.size(2)) * length;
  const at::Tensor dropped =
      dropout(weights, way.dropout, DropoutPlace::kAttentionScores, context, {.begins = {first}});
  return at::matmul(dropped, v).transpose(1, 2);
}

/// Computes by libtorch's operations what the kernels lack: dropout of weights and, on some devices,
/// windows and caps. With a window, forward holds the weights of some tokens at a time, otherwise of a row.
at::Tensor composed_attention(const Heads& heads, const AttentionOptions& way, const StageContext& context) {
  constexpr int64_t kLeastQueries = 128;
  const int64_t length = heads.q.size(1), window = way.scores.window;
  const int64_t queries = window > 0 ? std::max(window, kLeastQueries) : length;
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < length; first += queries) {
    const int64_t count = std::min(queries, length - first);
    const int64_t first_key = window > 0 ? std::max<int64_t>(0, first - window + 1) : 0;
    parts.push_back(composed_span(heads, {first, count, first_key, first + count - first_key}, way, context));
  }
  return join_heads(parts.size() == 1 ? parts.front() : at::cat(parts, 1));
}

/// -> [B, T, heads * head_dim]
at::Tensor causal_attention(const Heads& heads, const AttentionOptions& way, const StageContext& context);

/// A token attends to its own document only. -> [B, T, heads * head_dim]
at::Tensor attention_within_documents(const Heads& heads, const AttentionOptions& way,
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
      inside.document_bounds = at::Tensor();
      if (inside.dropout) {
        inside.dropout->key = util::mix64(inside.dropout->key + static_cast<uint64_t>(i));
        inside.dropout->first_row += static_cast<int64_t>(row);
      }
      parts.push_back(causal_attention({.q = q[i], .k = k[i], .v = v[i], .first = heads.first}, way, inside));
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
          .longest = context.documents ? longest_document(*context.documents, length) : length};
}

at::Tensor causal_attention(const Heads& heads, const AttentionOptions& given, const StageContext& context) {
  const at::Tensor &k = heads.k, &v = heads.v;
  at::Tensor q = heads.q;
  AttentionOptions way = given;
  way.scores = given.scores.of(context.cut ? q.size(1) * context.cut->degree : q.size(1));
  const bool drops = way.dropout > 0 && context.dropout, has_cache = context.cache != nullptr;
  if (context.cut) {
    FSDP_CHECK(!drops, "dropout of the weights of a cut sequence");
    if (way.scores.window > 0 || way.scores.cap > 0) {
      fail(
          ErrorKind::kUsage,
          "expected attention without sliding_window and attn_logit_softcapping in sequences that several ranks "
          "share; found sliding_window ",
          way.scores.window, " and attn_logit_softcapping ", way.scores.cap, "; set mesh.context = 1");
    }
    if (way.scores.scale > 0) q = q * (way.scores.scale * std::sqrt(static_cast<double>(q.size(-1))));
    return join_heads(parallel::context_attention(q, k, v,
                                                  {.cut = context.cut,
                                                   .documents = context.documents,
                                                   .matmul = way.compute.matmul,
                                                   .fused = way.compute.fused}));
  }
  const bool is_plain_form = way.scores == kernels::AttentionForm{};
  const bool within_documents = has_documents(context);
  if (!drops && way.scores.cap == 0 && (within_documents || has_cache || way.scores.window > 0) &&
      kernels::can_use_flash_attention(q, k, v)) {
    return join_heads(within_documents ? kernels::flash_attention(q, k, v, packed(context, q), way.scores)
                                       : kernels::flash_attention_to_earlier(q, k, v, way.scores));
  }
  if (within_documents && !context.documents) {
    fail(ErrorKind::kUsage,
         "training.cuda_graphs with documents expected attention by flash kernels, for which a graph is the "
         "same whatever the documents; found ",
         q.size(3), " elements of ", c10::toString(q.scalar_type()),
         " in a head, for which there is none; set training.cuda_graphs = false");
  }
  if (context.documents) return attention_within_documents(heads, given, context);
  if (drops) return composed_attention(heads, way, context);
  if (way.compute.fused && kernels::can_attend(q)) {
    return join_heads(kernels::causal_attention(q, k, v, way.compute.matmul, way.scores, way.recomputed));
  }
  if (way.scores.window > 0 || way.scores.cap > 0) return composed_attention(heads, way, context);
  if (is_plain_form) {
    if (at::Tensor attended = kernels::device_attention(q, k, v); attended.defined()) return attended;
  }
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
                                                     /*is_causal=*/true, way.scores.scale_of(q.size(3)),
                                                     /*enable_gqa=*/queries.size(1) != keys.size(1));
  return join_heads(attended.transpose(1, 2));
}

}  // namespace

Attention::Attention(const ModelOptions& options, int64_t layer)
    : head_dim_(head_width(options)),
      heads_(options.num_attention_heads),
      key_heads_(key_value_heads(options)),
      form_(family_of(options).qkv_form),
      norms_(family_of(options).query_key_norm),
      is_rotary_(is_rotary_layer(options, layer)),
      rotates_all_(is_rotary_ && rotary_width(options) == head_dim_),
      paired_(family_of(options).rotates_neighbours ? rotary_width(options) : 0),
      is_local_(options.rope_local_base_freq > 0 && window_of_layer(options, layer) > 0),
      scores_{.scale = score_scale(options),
              .window = window_of_layer(options, layer),
              .cap = options.attn_logit_softcapping},
      dropout_(options.attention_dropout),
      compute_(options) {
  const Family& family = family_of(options);
  const int64_t hidden = options.hidden_size, queries = query_width(options), keys = key_width(options);
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, bool biased) {
    return register_module(
        name, std::make_shared<Linear>(in, out, compute_,
                                       LinearForm{.biased = biased, .transposed = family.transposed}));
  };
  const bool biased = has_qkv_bias(options);
  if (form_ == QkvForm::kSeparate) {
    q_ = linear(family.queries, hidden, queries, biased);
    k_ = linear(family.keys, hidden, keys, biased);
    v_ = linear(family.values, hidden, keys, biased);
  } else {
    q_ = linear(family.queries, hidden, queries + 2 * keys, biased);
  }
  output_ = linear(family.output, queries, hidden, has_output_bias(options));
  output_->set_input_kept();  // attention's backward needs its result
  if (norms_ == QueryKeyNorm::kNone) return;
  const bool of_head = norms_ == QueryKeyNorm::kOfHead;
  q_norm_ = register_module("q_norm", make_norm(options, of_head ? head_dim_ : queries));
  k_norm_ = register_module("k_norm", make_norm(options, of_head ? head_dim_ : keys));
}

void Attention::recompute(const std::vector<std::string>& operations) {
  const auto is_one = [&](const char* name) { return std::ranges::count(operations, name) > 0; };
  for (const auto& linear : {q_, k_, v_}) {
    if (linear) linear->set_recomputed(is_one(kQkv));
  }
  output_->set_recomputed(is_one(kOutput));
  recomputes_attention_ = is_one(kAttention);
}

at::Tensor Attention::run(const at::Tensor& x, const StageContext& context, kernels::Addend* addend) const {
  Heads heads = heads_of(x, context);
  if (heads.attended.defined()) return output_->forward(heads.attended, &context, addend);
  if (const auto& parallel = q_->parallel()) heads.first = parallel->ranks.rank() * heads.q.size(2);
  const AttentionOptions way{
      .scores = scores_, .dropout = dropout_, .compute = compute_, .recomputed = recomputes_attention_};
  if (context.cache == nullptr) {
    return output_->forward(causal_attention(heads, way, context), &context, addend);
  }
  const bool first = context.cache->length() == 0;
  const auto [keys, values] = context.cache->append(*this, heads.k, heads.v);
  return output_->forward(first ? causal_attention(heads, way, context)
                                : join_heads(attend_to_cache(heads.q, keys, values, scores_)),
                          &context);
}

std::optional<Heads> Attention::joined_heads(const at::Tensor& x, const StageContext& context) const {
  const bool fits =
      form_ == QkvForm::kSeparate && norms_ == QueryKeyNorm::kNone && rotates_all_ && paired_ == 0;
  if (!fits || cos(context).scalar_type() != at::kFloat) return std::nullopt;
  const at::Tensor joined = forward_joined(x, {q_.get(), k_.get(), v_.get()}, &context);
  if (!joined.defined()) return std::nullopt;
  const kernels::JoinedHeads heads{q_->weight().size(0) / head_dim_, k_->weight().size(0) / head_dim_};
  if (is_plain(dropout_, context) && scores_.of(x.size(1)) == kernels::AttentionForm{}) {
    if (at::Tensor y = kernels::rotary_attention(joined, heads, cos(context), sin(context)); y.defined()) {
      return Heads{.attended = y};
    }
  }
  const auto [q, k, v] = kernels::joined_rotary(joined, heads, cos(context), sin(context));
  return Heads{q, k, v};
}

Attention::Heads Attention::heads_of(const at::Tensor& x, const StageContext& context) const {
  if (auto joined = joined_heads(x, context)) return *std::move(joined);
  if (form_ == QkvForm::kSideBySide && norms_ == QueryKeyNorm::kNone && !is_rotary_) {
    if (const at::Tensor all = q_->forward_leaving_bias(x); all.defined()) {
      const auto [q, k, v] = kernels::joined_split(all, {heads_, key_heads_}, q_->bias());
      return {q, k, v};
    }
  }
  std::vector<at::Tensor> qkv;
  if (form_ == QkvForm::kSeparate) {
    qkv = forward_all(x, {q_.get(), k_.get(), v_.get()}, &context);
    if (norms_ == QueryKeyNorm::kOfAll) {
      qkv[0] = q_norm_->forward(qkv[0]);
      qkv[1] = k_norm_->forward(qkv[1]);
    }
  } else {
    const at::Tensor all = q_->forward(x, &context);
    if (form_ == QkvForm::kByHead) {
      qkv = split_heads(all, 3 * head_dim_).chunk(3, /*dim=*/-1);
    } else {
      // A rank may have some of the heads only.
      const int64_t share = all.size(-1), of_all = heads_ + 2 * key_heads_;
      const int64_t queries = share * heads_ / of_all, keys = share * key_heads_ / of_all;
      qkv = all.split_with_sizes({queries, keys, keys}, /*dim=*/-1);
    }
  }
  if (form_ != QkvForm::kByHead) {
    for (at::Tensor& each : qkv) each = split_heads(each, head_dim_);
  }
  if (norms_ == QueryKeyNorm::kOfHead) {
    qkv[0] = q_norm_->forward(qkv[0]);
    qkv[1] = k_norm_->forward(qkv[1]);
  }
  if (!is_rotary_) return {qkv[0], qkv[1], qkv[2]};
  return {rotated(qkv[0], context), rotated(qkv[1], context), qkv[2]};
}

at::Tensor Attention::rotated(const at::Tensor& given, const StageContext& context) const {
  const at::Tensor x = paired_ > 0 ? rotary_halves(given, paired_) : given;
  const at::Tensor cosines = cos(context), sines = sin(context);
  if (rotates_all_ && compute_.fused && kernels::can_fuse(x) && cosines.scalar_type() == at::kFloat) {
    return kernels::rotary(x, cosines, sines);
  }
  return apply_rotary(x.transpose(1, 2), cosines, sines).transpose(1, 2);
}

}  // namespace fsdp::nn
