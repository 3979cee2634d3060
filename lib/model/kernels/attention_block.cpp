#include "model/kernels/attention_block.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/util/error.h"
#include "model/kernels/flash_attention.h"
#include "model/kernels/meta.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kQueriesAtOnce = 256;  ///< queries of a product with all keys

bool takes_flash(const AttentionInputs& in) {
  // If each head has one query, libtorch would swap heads and tokens.
  return in.q.size(1) > 1 && can_use_flash_attention(in.q, in.k, in.v);
}

/// Groups x by key-value head: [B, T, kv_heads * group, D] -> [B, kv_heads, group * T, D], in fp32.
at::Tensor by_kv_head(const at::Tensor& x, int64_t kv_heads) {
  const int64_t group = x.size(2) / kv_heads;
  return x.to(at::kFloat)
      .view({x.size(0), x.size(1), kv_heads, group, x.size(3)})
      .permute({0, 2, 3, 1, 4})
      .reshape({x.size(0), kv_heads, group * x.size(1), x.size(3)});
}

/// Returns the inverse, for T = tokens.
at::Tensor by_token(const at::Tensor& x, int64_t tokens) {
  const int64_t group = x.size(2) / tokens;
  return x.view({x.size(0), x.size(1), group, tokens, x.size(3)})
      .permute({0, 3, 1, 2, 4})
      .reshape({x.size(0), tokens, x.size(1) * group, x.size(3)});
}

/// A block composed of libtorch's operations, some queries at a time.
class Composed {
 public:
  explicit Composed(const AttentionInputs& in)
      : in_(in),
        kv_heads_(in.k.size(2)),
        scale_(1 / std::sqrt(static_cast<double>(in.q.size(3)))),
        k_(by_kv_head(in.k, kv_heads_)),
        v_(by_kv_head(in.v, kv_heads_)) {}

  AttentionOutputs forward() const {
    const at::Tensor& q = in_.q;
    AttentionOutputs out{at::empty(q.sizes(), q.options()),
                         at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
    for_queries([&](int64_t first, int64_t count) {
      const at::Tensor scores = scores_of(first, count);
      const at::Tensor log_sums = scores.logsumexp(-1, /*keepdim=*/true);
      const at::Tensor y = (scores - log_sums).exp_().matmul(v_);
      out.y.narrow(1, first, count).copy_(by_token(y, count));
      out.log_sums.narrow(2, first, count).copy_(log_sums.view({q.size(0), q.size(2), count}));
    });
    return out;
  }

  AttentionGradients backward(const AttentionOutputs& of, const at::Tensor& dy) const {
    at::Tensor dq = at::empty_like(in_.q), dk = at::zeros_like(k_), dv = at::zeros_like(v_);
    for_queries([&](int64_t first, int64_t count) {
      const auto rows = [&](const at::Tensor& x) { return by_kv_head(x.narrow(1, first, count), kv_heads_); };
      const at::Tensor q = rows(in_.q), d = rows(dy);
      const at::Tensor log_sums =
          of.log_sums.narrow(2, first, count).reshape({q.size(0), kv_heads_, q.size(2), 1});
      const at::Tensor weights = (scores_of(first, count) - log_sums).exp_();
      dv.add_(weights.transpose(2, 3).matmul(d));
      const at::Tensor products = (d * rows(of.y)).sum(-1, /*keepdim=*/true);
      const at::Tensor dscores = weights.mul_(d.matmul(v_.transpose(2, 3)) - products).mul_(scale_);
      dk.add_(dscores.transpose(2, 3).matmul(q));
      dq.narrow(1, first, count).copy_(by_token(dscores.matmul(k_), count));
    });
    const int64_t keys = in_.k.size(1);
    return {dq, by_token(dk, keys).to(in_.k.scalar_type()), by_token(dv, keys).to(in_.v.scalar_type())};
  }

 private:
  template <typename Body>
  void for_queries(const Body& body) const {
    const int64_t tokens = in_.q.size(1);
    for (int64_t first = 0; first < tokens; first += kQueriesAtOnce) {
      body(first, std::min(kQueriesAtOnce, tokens - first));
    }
  }

  /// [B, kv_heads, group * count, keys]
  at::Tensor scores_of(int64_t first, int64_t count) const {
    const at::Tensor q = by_kv_head(in_.q.narrow(1, first, count), kv_heads_);
    at::Tensor scores = q.matmul(k_.transpose(2, 3)).mul_(scale_);
    if (!in_.causal) return scores;
    const int64_t keys = k_.size(2), beyond = keys - in_.q.size(1);
    const at::Tensor hidden = at::ones({count, keys}, q.options().dtype(at::kBool)).triu(first + beyond + 1);
    scores.view({q.size(0), kv_heads_, -1, count, keys})
        .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    return scores;
  }

  const AttentionInputs& in_;
  int64_t kv_heads_;
  double scale_;
  at::Tensor k_, v_;
};

/// Returns the memory of a composed block besides its results.
void touch_composed(const AttentionInputs& in, int matrices) {
  const at::Tensor& q = in.q;
  const int64_t queries = std::min(kQueriesAtOnce, q.size(1));
  const auto numbers = q.options().dtype(at::kFloat);
  const at::Tensor keys = at::empty({2, in.k.numel()}, numbers),
                   scores = at::empty({matrices, q.size(0) * q.size(2), queries, in.k.size(1)}, numbers);
}

AttentionOutputs meta_block(const AttentionInputs& in) {
  const at::Tensor& q = in.q;
  AttentionOutputs out{at::empty(q.sizes(), q.options()),
                       at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  if (!takes_flash(in)) touch_composed(in, 2);
  note_attention_block(q, in.k, in.causal);
  return out;
}

AttentionGradients meta_block_backward(const AttentionInputs& in) {
  AttentionGradients out{at::empty_like(in.q), at::empty_like(in.k), at::empty_like(in.v)};
  if (!takes_flash(in)) touch_composed(in, 3);
  for (int i = 0; i < 2; ++i) note_attention_block(in.q, in.k, in.causal);
  return out;
}

}  // namespace

AttentionOutputs attention_block(const AttentionInputs& in, bool fused) {
  FSDP_CHECK(in.k.sizes() == in.v.sizes() && in.q.size(2) % in.k.size(2) == 0 &&
                 (!in.causal || in.q.size(1) <= in.k.size(1)),
             in.q.sizes(), in.k.sizes(), in.v.sizes());
  if (fused && can_attend(in.q)) return tiled_attention(in);
  if (in.q.is_meta()) return meta_block(in);
  return takes_flash(in) ? flash_attention_with_log_sums(in) : Composed(in).forward();
}

AttentionGradients attention_block_backward(const AttentionInputs& in, const AttentionOutputs& of,
                                            const at::Tensor& dy, bool fused) {
  if (fused && can_attend(in.q)) return tiled_attention_backward(in, of, dy);
  if (in.q.is_meta()) return meta_block_backward(in);
  return takes_flash(in) ? flash_attention_backward(in, of, dy) : Composed(in).backward(of, dy);
}

void merge_attention(const AttentionOutputs& sum, const AttentionOutputs& block) {
  FSDP_CHECK(sum.y.scalar_type() == at::kFloat, "sums in ", sum.y.scalar_type());
  const at::Tensor log_sums = at::logaddexp(sum.log_sums, block.log_sums);
  const auto share = [&](const at::Tensor& part) {
    return (part - log_sums).exp_().transpose(1, 2).unsqueeze(-1);  // [B, Tq, heads, 1]
  };
  sum.y.mul_(share(sum.log_sums)).addcmul_(block.y.to(at::kFloat), share(block.log_sums));
  sum.log_sums.copy_(log_sums);
}

}  // namespace fsdp::kernels
