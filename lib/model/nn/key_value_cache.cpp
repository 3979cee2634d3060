#include "model/nn/key_value_cache.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <limits>
#include <optional>

#include "base/util/error.h"
#include "model/families/families.h"
#include "model/families/rotary_scaling.h"
#include "model/kernels/flash_attention.h"

namespace fsdp::nn {

KeyValueCache::KeyValueCache(const ModelOptions& options, int64_t capacity)
    : options_(options), capacity_(capacity), max_positions_(longest_sequence(options)) {
  FSDP_CHECK(capacity > 0, capacity);
  if (capacity > max_positions_) {
    fail(ErrorKind::kUsage, "a text may have at most ", max_positions_,
         " tokens, the positions of the model (max_position_embeddings), but would have ", capacity,
         "; shorten the prompt or ask for fewer new tokens");
  }
}

void KeyValueCache::require_room(int64_t tokens) const {
  if (length_ + tokens <= capacity_) return;
  fail(ErrorKind::kUsage, "the key-value cache has room for ", capacity_, " tokens, but ", length_, " + ",
       tokens, " are needed; make it larger (the model has ", max_positions_,
       " positions) or ask for fewer tokens");
}

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const Stage& attention, const at::Tensor& keys,
                                                        const at::Tensor& values) {
  const int64_t rows = keys.size(0), tokens = keys.size(1), heads = keys.size(2), width = keys.size(3);
  FSDP_CHECK(!keys.requires_grad(), "a key-value cache has no gradients");
  Kept& kept = of_[&attention];
  if (!kept.keys.defined()) {
    FSDP_CHECK(length_ == 0, "an attention stage that did not see the first tokens");
    for (at::Tensor* memory : {&kept.keys, &kept.values}) {
      *memory = at::empty({rows, heads, capacity_, width}, keys.options());
    }
  }
  FSDP_CHECK(kept.keys.size(0) == rows, rows, " rows for a cache of ", kept.keys.size(0));
  auto all = [&](const at::Tensor& memory, const at::Tensor& added) {
    memory.narrow(2, length_, tokens).copy_(added.transpose(1, 2));
    return memory.narrow(2, 0, length_ + tokens);
  };
  return {all(kept.keys, keys), all(kept.values, values)};
}

void KeyValueCache::select_rows(const at::Tensor& rows) {
  at::NoGradGuard no_grad;
  if (seen_.defined()) seen_ = seen_.index_select(0, rows);
  for (auto& [stage, kept] : of_) {
    for (at::Tensor* memory : {&kept.keys, &kept.values}) {
      std::vector<int64_t> shape = memory->sizes().vec();
      shape[0] = rows.size(0);
      at::Tensor selected = at::empty(shape, memory->options());
      selected.narrow(2, 0, length_).copy_(memory->narrow(2, 0, length_).index_select(0, rows));
      *memory = selected;
    }
  }
}

at::Tensor KeyValueCache::whole_rows(const at::Tensor& ids) {
  require_room(ids.size(1) + (has_whole_rows_ ? seen_.size(1) : 0));
  seen_ = has_whole_rows_ ? at::cat({seen_, ids}, 1) : ids;
  has_whole_rows_ = true;
  return seen_;
}

at::Tensor KeyValueCache::tokens_to_see(const at::Tensor& ids) {
  if (rope_length(options_, capacity_) == 0) return ids;
  const int64_t before = seen_.defined() ? seen_.size(1) : 0, after = before + ids.size(1);
  require_room(ids.size(1));
  seen_ = before > 0 ? at::cat({seen_, ids}, 1) : ids;
  if (rope_length(options_, before) == rope_length(options_, after)) return ids;
  length_ = 0;
  return seen_;
}

namespace {

/// -> [B, T, vocab_size], or [B, 1, vocab_size] with only_last.
at::Tensor cached_scores(Stage& model, const at::Tensor& ids, KeyValueCache& cache, bool only_last) {
  at::NoGradGuard no_grad;
  StageContext context;
  context.cache = &cache;
  context.only_last = only_last;
  const int64_t tokens = ids.size(1);
  at::Tensor all;
  if (cache.has_whole_rows()) {
    all = model.forward(cache.whole_rows(ids));
  } else {
    const at::Tensor seen = cache.tokens_to_see(ids);
    const int64_t before = cache.length();
    all = model.forward(seen, context);
    if (cache.length() == before) cache.whole_rows(ids);
  }
  const int64_t wanted = only_last ? 1 : tokens;
  return all.narrow(1, all.size(1) - wanted, wanted);
}

}  // namespace

at::Tensor scores(Stage& model, const at::Tensor& ids, KeyValueCache& cache) {
  return cached_scores(model, ids, cache, /*only_last=*/false);
}

at::Tensor next_scores(Stage& model, const at::Tensor& ids, KeyValueCache& cache) {
  return cached_scores(model, ids, cache, /*only_last=*/true).select(1, 0);
}

at::Tensor attend_to_cache(const at::Tensor& q, const at::Tensor& all_keys, const at::Tensor& all_values,
                           const kernels::AttentionForm& form) {
  const int64_t rows = q.size(0), tokens = q.size(1), heads = q.size(2), width = q.size(3);
  const auto seen = [&](const at::Tensor& x) {
    const int64_t most = form.window + tokens - 1;
    return form.window > 0 && x.size(2) > most ? x.narrow(2, x.size(2) - most, most) : x;
  };
  const at::Tensor keys = seen(all_keys), values = seen(all_values);
  const at::Tensor k = keys.transpose(1, 2), v = values.transpose(1, 2);
  if (form.cap == 0 && kernels::can_use_flash_attention(q, k, v)) {
    return kernels::flash_attention_to_earlier(q, k, v, form);
  }
  const int64_t kv_heads = keys.size(1), group = heads / kv_heads, length = keys.size(2);
  // Heads that share keys become queries of one head, so that keys and values are not repeated.
  const at::Tensor queries = q.view({rows, tokens, kv_heads, group, width})
                                 .permute({0, 2, 3, 1, 4})
                                 .reshape({rows, kv_heads, group * tokens, width});
  std::optional<at::Tensor> visible;
  if (tokens > 1) {
    at::Tensor mask = at::ones({tokens, length}, q.options().dtype(at::kBool)).tril(length - tokens);
    if (form.window > 0) mask = mask.triu(length - tokens - form.window + 1);
    visible = mask.expand({group, tokens, length}).reshape({group * tokens, length});
  }
  at::Tensor attended;
  if (form.cap > 0) {
    at::Tensor scores = at::matmul(queries, keys.transpose(2, 3)) * form.scale_of(width);
    scores = (scores.to(at::kFloat) / form.cap).tanh() * form.cap;
    if (visible)
      scores = scores.masked_fill(visible->logical_not(), -std::numeric_limits<double>::infinity());
    attended = at::matmul(scores.softmax(-1, at::kFloat).to(values.scalar_type()), values);
  } else {
    attended = at::scaled_dot_product_attention(queries, keys, values, visible, /*dropout_p=*/0.0,
                                                /*is_causal=*/false, form.scale_of(width));
  }
  return attended.view({rows, kv_heads, group, tokens, width})
      .permute({0, 3, 1, 2, 4})
      .reshape({rows, tokens, heads, width});
}

}  // namespace fsdp::nn
