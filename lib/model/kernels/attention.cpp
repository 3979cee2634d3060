#include "model/kernels/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/block_product.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/cpu/tiles.h"
#include "model/kernels/meta.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/tile_product.h"

namespace fsdp::kernels {
namespace {

const cpu::AttentionLoops* loops_for(at::ScalarType type) {
  if (type == at::kFloat) return cpu::attention_loops(cpu::Element::kFloat);
  return type == at::kBFloat16 ? cpu::attention_loops(cpu::Element::kBFloat16) : nullptr;
}

/// One head of one sequence of x, [B, T, heads, head_dim].
template <typename T>
struct AttentionHead {
  T* data;
  int64_t stride;  ///< elements from token to token

  AttentionHead(const at::Tensor& x, int64_t batch, int64_t head)
      : data(static_cast<T*>(x.data_ptr()) + batch * x.stride(0) + head * x.stride(2)), stride(x.stride(1)) {}
  T* row(int64_t token) const { return data + token * stride; }
  cpu::StridedRows rows(int64_t first, int64_t count, int64_t width) const {
    return {.data = row(first), .stride = stride, .rows = count, .width = width};
  }
};

/// The small products of a pass, computed by oneDNN or by the core's matrix unit.
class Products {
 public:
  explicit Products(bool by_tiles) : by_tiles_(by_tiles) {}

  /// c = a b or, with `adds`, c += a b. c: [m, n], a: [m, k], b: packed
  template <typename T>
  void multiply(const SmallShape& shape, const SmallFactor<T>& a, const SmallFactor<T>& b, bool adds,
                float* c) const {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      if (by_tiles_) {
        const cpu::TileFactors factors{.left = reinterpret_cast<const uint16_t*>(a.data),
                                       .right = reinterpret_cast<const uint16_t*>(b.data),
                                       .steps = shape.k / cpu::kTileDepth,
                                       .left_stride = a.stride,
                                       .right_stride = b.stride};
        return cpu::multiply_tiles({.terms = &factors,
                                    .term_count = 1,
                                    .rows = shape.m,
                                    .columns = shape.n,
                                    .sums = c,
                                    .sums_stride = shape.n,
                                    .adds = adds});
      }
    }
    small_product<T>(shape, a, b, adds, c, shape.n);
  }

  /// Calls `body`, which may call multiply().
  template <typename Body>
  void run(const Body& body) const {
    if (by_tiles_) {
      const cpu::TileRegisters registers;
      return body();
    }
    body();
    end_small_products();
  }

 private:
  bool by_tiles_;
};

/// Whether all products have whole tiles. False for fp32, whose factors would be split for a single product.
bool fits_tiles(const at::Tensor& q, const at::Tensor& k, Matmul matmul) {
  return matmul == Matmul::kAmx && q.scalar_type() == at::kBFloat16 && can_multiply_by_tiles(q) &&
         q.size(1) % cpu::kTileDepth == 0 && k.size(1) % cpu::kTileDepth == 0 &&
         q.size(3) % cpu::kTileDepth == 0;
}

/// A thread's memory for tiles, allocated piece by piece.
class AttentionScratch {
 public:
  explicit AttentionScratch(int64_t bytes) : memory_(at::empty({bytes}, at::kByte)) {}
  template <typename T>
  T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(memory_.data_ptr<uint8_t>() + used_);
    used_ += count * static_cast<int64_t>(sizeof(T));
    FSDP_CHECK(used_ <= memory_.numel(), used_, " bytes");
    return part;
  }

 private:
  at::Tensor memory_;
  int64_t used_ = 0;
};

struct Sizes {
  int64_t batch, tokens, seen, heads, kv_heads, head_dim;
  int64_t beyond;  ///< query t attends to the keys up to t + beyond
  int64_t window;  ///< number of keys that a query attends to; 0: all from the first on
  float scale, cap;
  Products products;

  explicit Sizes(const AttentionInputs& in)
      : batch(in.q.size(0)),
        tokens(in.q.size(1)),
        seen(in.k.size(1)),
        heads(in.q.size(2)),
        kv_heads(in.k.size(2)),
        head_dim(in.q.size(3)),
        beyond(in.causal ? seen - tokens : seen),
        window(in.form.window),
        scale(static_cast<float>(in.form.scale_of(in.q.size(3)))),
        cap(static_cast<float>(in.form.cap)),
        products(fits_tiles(in.q, in.k, in.matmul)) {}
  int64_t group() const { return heads / kv_heads; }
  /// Number of keys that some of the queries before `end` attend to.
  int64_t seen_before(int64_t end) const { return std::min(seen, end + beyond); }
  /// Returns the first key that query `query` attends to, rounded down so that factors and tiles begin at
  /// whole ones. The first tile from there on has a key for each of kQueries queries.
  int64_t first_seen(int64_t query) const {
    if (window == 0) return 0;
    return std::max<int64_t>(0, query + beyond - window + 1) / AttentionSizes::kQueries *
           AttentionSizes::kQueries;
  }
  /// Number of queries that attend to keys before `end`.
  int64_t seers_before(int64_t end) const {
    return window == 0 ? tokens : std::min(tokens, end - 1 - beyond + window);
  }
  AttentionSizes memory(const at::Tensor& q) const {
    return {.tokens = tokens,
            .seen = seen,
            .head_dim = head_dim,
            .element = static_cast<int64_t>(q.element_size())};
  }
  /// Calls body(batch, key-value head) on several threads.
  template <typename Body>
  void for_kv_heads(const Body& body) const {
    const int64_t work = std::max<int64_t>(1, tokens * seen * head_dim * group());
    util::parallel_for(0, batch * kv_heads, std::max<int64_t>(1, kLeastWork / work),
                       [&](int64_t begin, int64_t end) {
                         products.run([&] {
                           for (int64_t i = begin; i < end; ++i) body(i / kv_heads, i % kv_heads);
                         });
                       });
  }
};

/// Number of neighbouring elements of a packed column.
template <typename T>
constexpr int64_t kPairs = std::is_same_v<T, float> ? 1 : 2;

/// The state that both passes share.
class AttentionPass {
 protected:
  explicit AttentionPass(const AttentionInputs& in)
      : in_(in),
        loops_(*loops_for(in.q.scalar_type())),
        packing_(
            *cpu::packing(in.q.scalar_type() == at::kFloat ? cpu::Element::kFloat : cpu::Element::kBFloat16)),
        sizes_(in),
        memory_(sizes_.memory(in.q)) {}

  /// Returns the log-sums of one head, [tokens].
  float* log_sums_of(const at::Tensor& log_sums, int64_t batch, int64_t head) const {
    return log_sums.data_ptr<float>() + (batch * sizes_.heads + head) * sizes_.tokens;
  }

  const AttentionInputs& in_;
  const cpu::AttentionLoops& loops_;
  const cpu::Packing& packing_;
  Sizes sizes_;
  AttentionSizes memory_;
};

template <typename T>
class ForwardPass : AttentionPass {
 public:
  ForwardPass(const AttentionInputs& in, const AttentionOutputs& out) : AttentionPass(in), out_(out) {}

  void run() {
    sizes_.for_kv_heads([this](int64_t batch, int64_t kv_head) { heads_of(batch, kv_head); });
  }

 private:
  void heads_of(int64_t batch, int64_t kv_head) {
    const int64_t tokens = sizes_.tokens, seen = sizes_.seen, width = sizes_.head_dim,
                  even = AttentionSizes::even(seen);
    AttentionScratch scratch(memory_.forward_bytes());
    T* keys = scratch.take<T>(even * width);
    T* values = scratch.take<T>(even * width);
    float* scores = scratch.take<float>(memory_.queries() * memory_.keys());
    T* factors = scratch.take<T>(memory_.queries() * memory_.keys());
    float* output = scratch.take<float>(memory_.queries() * width);
    float* most = scratch.take<float>(memory_.queries());
    float* sum = scratch.take<float>(memory_.queries());
    packing_.columns(AttentionHead<T>(in_.k, batch, kv_head).rows(0, seen, width), keys);
    packing_.rows(AttentionHead<T>(in_.v, batch, kv_head).rows(0, seen, width), even, values);

    for (int64_t head = kv_head * sizes_.group(); head < (kv_head + 1) * sizes_.group(); ++head) {
      const AttentionHead<T> q(in_.q, batch, head), y(out_.y, batch, head);
      float* log_sums = log_sums_of(out_.log_sums, batch, head);
      for (int64_t first = 0; first < tokens; first += AttentionSizes::kQueries) {
        const int64_t queries = std::min(AttentionSizes::kQueries, tokens - first),
                      end = sizes_.seen_before(first + queries);
        std::fill_n(output, queries * width, 0.0F);
        std::fill_n(most, queries, -std::numeric_limits<float>::infinity());
        std::fill_n(sum, queries, 0.0F);
        for (int64_t key = sizes_.first_seen(first); key < end; key += AttentionSizes::kKeys) {
          const int64_t count = std::min(AttentionSizes::kKeys, end - key),
                        padded = AttentionSizes::even(count);
          sizes_.products.multiply<T>({queries, count, width}, {q.row(first), q.stride},
                                      {keys + kPairs<T> * key, seen}, false, scores);
          loops_.softmax({.scores = scores,
                          .factors = factors,
                          .most = most,
                          .sum = sum,
                          .output = output,
                          .queries = queries,
                          .keys = count,
                          .padded = padded,
                          .width = width,
                          .diagonal = first + sizes_.beyond - key,
                          .window = sizes_.window,
                          .scale = sizes_.scale,
                          .cap = sizes_.cap});
          sizes_.products.multiply<T>({queries, width, padded}, {factors, padded},
                                      {values + key * width, width}, true, output);
        }
        loops_.finish({.output = output,
                       .most = most,
                       .sum = sum,
                       .y = y.row(first),
                       .stride = y.stride,
                       .log_sums = log_sums + first,
                       .queries = queries,
                       .width = width});
      }
    }
  }

  const AttentionOutputs& out_;
};

template <typename T>
class BackwardPass : AttentionPass {
 public:
  struct Tensors {
    at::Tensor y, log_sums, dy, dq, dk, dv;
  };
  BackwardPass(const AttentionInputs& in, const Tensors& tensors) : AttentionPass(in), t_(tensors) {}

  void run() {
    sizes_.for_kv_heads([this](int64_t batch, int64_t kv_head) { heads_of(batch, kv_head); });
  }

 private:
  /// A thread's memory for packed factors, and gradients in fp32.
  struct HeadWork {
    T *k, *q, *q_transposed, *dy, *dy_transposed;
    float *dq, *dk, *dv, *products;
    float *scores, *dfactors;
    T *factors, *dscores, *dscores_by_query;
  };

  void heads_of(int64_t batch, int64_t kv_head) {
    const int64_t tokens = sizes_.tokens, seen = sizes_.seen, width = sizes_.head_dim,
                  even = AttentionSizes::even(tokens), even_seen = AttentionSizes::even(seen);
    const int64_t tile = memory_.queries() * memory_.keys_backward();
    AttentionScratch scratch(memory_.backward_bytes());
    HeadWork w{};
    w.k = scratch.take<T>(even_seen * width);
    for (T** packed : {&w.q, &w.q_transposed, &w.dy, &w.dy_transposed})
      *packed = scratch.take<T>(even * width);
    w.dq = scratch.take<float>(tokens * width);
    for (float** gradient : {&w.dk, &w.dv}) *gradient = scratch.take<float>(seen * width);
    w.products = scratch.take<float>(tokens);
    for (float** part : {&w.scores, &w.dfactors}) *part = scratch.take<float>(tile);
    for (T** part : {&w.factors, &w.dscores, &w.dscores_by_query}) *part = scratch.take<T>(tile);

    const AttentionHead<T> k(in_.k, batch, kv_head), v(in_.v, batch, kv_head);
    packing_.rows(k.rows(0, seen, width), even_seen, w.k);
    std::fill_n(w.dk, seen * width, 0.0F);
    std::fill_n(w.dv, seen * width, 0.0F);
    for (int64_t head = kv_head * sizes_.group(); head < (kv_head + 1) * sizes_.group(); ++head) {
      const AttentionHead<T> q(in_.q, batch, head), y(t_.y, batch, head), dy(t_.dy, batch, head),
          dq(t_.dq, batch, head);
      const cpu::StridedRows q_rows = q.rows(0, tokens, width), dy_rows = dy.rows(0, tokens, width);
      packing_.rows(q_rows, even, w.q);
      packing_.columns(q_rows, w.q_transposed);
      packing_.rows(dy_rows, even, w.dy);
      packing_.columns(dy_rows, w.dy_transposed);
      loops_.row_products(y.rows(0, tokens, width), dy_rows, w.products);
      std::fill_n(w.dq, tokens * width, 0.0F);
      const float* log_sums = log_sums_of(t_.log_sums, batch, head);
      for (int64_t key = 0; key < seen; key += AttentionSizes::kKeysBackward) {
        const int64_t first = std::max<int64_t>(0, key - sizes_.beyond);  // first query that attends to it
        const int64_t end = sizes_.seers_before(std::min(seen, key + AttentionSizes::kKeysBackward));
        for (int64_t query = first / AttentionSizes::kQueries * AttentionSizes::kQueries; query < end;
             query += AttentionSizes::kQueries) {
          tile_of(w, k, v, log_sums, key, query);
        }
      }
      loops_.round(w.dq, dq.row(0), dq.stride, tokens, width);
    }
    const AttentionHead<T> dk(t_.dk, batch, kv_head), dv(t_.dv, batch, kv_head);
    loops_.round(w.dk, dk.row(0), dk.stride, seen, width);
    loops_.round(w.dv, dv.row(0), dv.stride, seen, width);
  }

  void tile_of(const HeadWork& w, const AttentionHead<T>& k, const AttentionHead<T>& v, const float* log_sums,
               int64_t key, int64_t query) {
    const int64_t tokens = sizes_.tokens, width = sizes_.head_dim;
    const int64_t queries = std::min(AttentionSizes::kQueries, tokens - query);
    const int64_t keys = std::min(AttentionSizes::kKeysBackward, sizes_.seen_before(query + queries) - key);
    const int64_t padded_queries = AttentionSizes::even(queries), padded_keys = AttentionSizes::even(keys);
    const Products& products = sizes_.products;
    products.multiply<T>({keys, queries, width}, {k.row(key), k.stride},
                         {w.q_transposed + kPairs<T> * query, tokens}, false, w.scores);
    products.multiply<T>({keys, queries, width}, {v.row(key), v.stride},
                         {w.dy_transposed + kPairs<T> * query, tokens}, false, w.dfactors);
    loops_.gradient({.scores = w.scores,
                     .dfactors = w.dfactors,
                     .log_sums = log_sums + query,
                     .products = w.products + query,
                     .factors = w.factors,
                     .dscores = w.dscores,
                     .dscores_by_query = w.dscores_by_query,
                     .queries = queries,
                     .padded_queries = padded_queries,
                     .keys = keys,
                     .padded_keys = padded_keys,
                     .diagonal = query + sizes_.beyond - key,
                     .window = sizes_.window,
                     .scale = sizes_.scale,
                     .cap = sizes_.cap});
    products.multiply<T>({keys, width, padded_queries}, {w.factors, padded_queries},
                         {w.dy + query * width, width}, true, w.dv + key * width);
    products.multiply<T>({keys, width, padded_queries}, {w.dscores, padded_queries},
                         {w.q + query * width, width}, true, w.dk + key * width);
    products.multiply<T>({queries, width, padded_keys}, {w.dscores_by_query, padded_keys},
                         {w.k + key * width, width}, true, w.dq + query * width);
  }

  const Tensors& t_;
};

/// Records memory and products, for meta tensors.
void take_scratch_of(const AttentionInputs& in, bool backward) {
  const Sizes sizes(in);
  const AttentionSizes memory = sizes.memory(in.q);
  touch_scratch(backward ? memory.backward_bytes() : memory.forward_bytes(), sizes.batch * sizes.kv_heads);
  for (int i = 0; i < (backward ? 2 : 1); ++i) note_attention_block(in.q, in.k, in.causal, in.form.window);
}

class CausalAttention final : public torch::autograd::Function<CausalAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, Matmul matmul, const AttentionForm& form, bool recomputed) {
    const BelowAutograd below;
    const AttentionOutputs out = tiled_attention({.q = q, .k = k, .v = v, .matmul = matmul, .form = form});
    save_operands(*context, {q, k, v, recomputed ? at::Tensor() : out.y, out.log_sums},
                  {{0, q}, {1, k}, {2, v}});
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    context->saved_data["scale"] = form.scale;
    context->saved_data["window"] = form.window;
    context->saved_data["cap"] = form.cap;
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list s = operands_of(*context);
    const auto [dq, dk, dv] = tiled_attention_backward(inputs(*context, s), {s[kY], s[4]}, gradients[0]);
    return {dq, dk, dv, {}, {}, {}};
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    return {tiled_attention(inputs(*context, operands_of(*context, OperandUse::kForwardAgain))).y};
  }

  static constexpr size_t kY = 3;  ///< slot of the result

 private:
  static AttentionInputs inputs(AutogradContext& context, const variable_list& saved) {
    return {.q = saved[0],
            .k = saved[1],
            .v = saved[2],
            .matmul = static_cast<Matmul>(context.saved_data["matmul"].toInt()),
            .form = {.scale = context.saved_data["scale"].toDouble(),
                     .window = context.saved_data["window"].toInt(),
                     .cap = context.saved_data["cap"].toDouble()}};
  }
};

}  // namespace

double AttentionForm::scale_of(int64_t head_dim) const {
  return scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

bool can_attend(const at::Tensor& q) {
  return is_for_cpu(q) && q.numel() > 0 && q.size(-1) % 2 == 0 && q.stride(-1) == 1 &&
         loops_for(q.scalar_type()) != nullptr && (q.scalar_type() == at::kFloat || has_bf16_instructions());
}

AttentionOutputs tiled_attention(const AttentionInputs& in) {
  const at::Tensor& q = in.q;
  FSDP_CHECK(!in.causal || q.size(1) <= in.k.size(1), q.sizes(), in.k.sizes());
  FSDP_CHECK(in.form.window == 0 || in.causal, "a window without causality");
  AttentionOutputs out{
      .y = at::empty(q.sizes(), q.options()),
      .log_sums = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  if (q.is_meta()) {
    take_scratch_of(in, /*backward=*/false);
  } else if (q.scalar_type() == at::kFloat) {
    ForwardPass<float>(in, out).run();
  } else {
    ForwardPass<at::BFloat16>(in, out).run();
  }
  return out;
}

AttentionGradients tiled_attention_backward(const AttentionInputs& in, const AttentionOutputs& of,
                                            const at::Tensor& gradient) {
  const at::Tensor dy = gradient.contiguous(), log_sums = of.log_sums.contiguous();
  AttentionGradients out{.dq = at::empty(in.q.sizes(), in.q.options()),
                         .dk = at::empty(in.k.sizes(), in.k.options()),
                         .dv = at::empty(in.v.sizes(), in.v.options())};
  if (in.q.is_meta()) {
    take_scratch_of(in, /*backward=*/true);
  } else if (in.q.scalar_type() == at::kFloat) {
    BackwardPass<float>(in, {of.y, log_sums, dy, out.dq, out.dk, out.dv}).run();
  } else {
    BackwardPass<at::BFloat16>(in, {of.y, log_sums, dy, out.dq, out.dk, out.dv}).run();
  }
  return out;
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Matmul matmul,
                            const AttentionForm& form, bool recomputed) {
  FSDP_CHECK(q.dim() == 4 && k.sizes() == v.sizes() && q.size(2) % k.size(2) == 0, q.sizes(), k.sizes(),
             v.sizes());
  const at::Tensor y = CausalAttention::apply(q, k, v, matmul, form, recomputed);
  if (recomputed) recompute_results<CausalAttention>(y, CausalAttention::kY);
  return y;
}

}  // namespace fsdp::kernels
