#include "model/parallel/context_attention.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "base/util/error.h"
#include "model/kernels/attention_block.h"

namespace fsdp::parallel {
namespace {

using kernels::AttentionGradients;
using kernels::AttentionInputs;
using kernels::AttentionOutputs;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor part(const at::Tensor& x, int64_t row, int64_t rows, int64_t first, int64_t count) {
  return x.narrow(0, row, rows).narrow(1, first, count);
}
at::Tensor queries_of(const at::Tensor& x, const AttentionBlock& block) {
  return part(x, block.row, block.rows, block.query, block.queries);
}
at::Tensor keys_of(const at::Tensor& x, const AttentionBlock& block) {
  return part(x, block.row, block.rows, block.key, block.keys);
}

/// Attention of one layer. Keys and values are one tensor: [2, B, tokens, kv_heads, head_dim].
class Layer {
 public:
  Layer(const ContextAttentionOptions& options, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)
      : options_(options), cut_(*options.cut), q_(q), k_(k), v_(v), length_(q.size(1) / 2) {
    FSDP_CHECK(q.dim() == 4 && k.sizes() == v.sizes() && q.size(1) == k.size(1) && q.size(1) % 2 == 0 &&
                   q.size(2) % k.size(2) == 0,
               q.sizes(), k.sizes(), v.sizes());
    FSDP_CHECK(
        cut_.group != nullptr && cut_.group->world_size() == cut_.degree && cut_.group->rank() == cut_.rank,
        "a cut without its group");
  }

  AttentionOutputs forward() { return gathers() ? forward_gathered() : forward_in_ring(); }
  AttentionGradients backward(const AttentionOutputs& of, const at::Tensor& dy) {
    return gathers() ? backward_gathered(of, dy) : backward_in_ring(of, dy);
  }

 private:
  bool gathers() const { return cut_.attention == comm::ContextAttention::kGather; }

  // ---- blocks

  std::vector<TokenRun> runs_of(int rank) const {
    const auto [first, second] = cut_.chunks_of(rank);
    return {{first * length_, length_, 0}, {second * length_, length_, length_}};
  }
  std::vector<AttentionBlock> blocks(const std::vector<TokenRun>& keys) const {
    return attention_blocks(runs_of(cut_.rank), keys, q_.size(0), options_.documents.get());
  }
  std::vector<AttentionBlock> blocks_of_all() const { return blocks({{0, 2 * length_ * cut_.degree, 0}}); }
  AttentionInputs inputs(const AttentionBlock& block, const at::Tensor& keys_and_values) const {
    return {.q = queries_of(q_, block),
            .k = keys_of(keys_and_values[0], block),
            .v = keys_of(keys_and_values[1], block),
            .causal = block.causal,
            .matmul = options_.matmul};
  }
  static AttentionOutputs part_of(const AttentionOutputs& all, const AttentionBlock& block) {
    return {.y = queries_of(all.y, block),
            .log_sums = all.log_sums.narrow(0, block.row, block.rows).narrow(2, block.query, block.queries)};
  }
  AttentionOutputs empty_outputs(at::ScalarType type) const {
    const auto options = q_.options();
    return {.y = at::empty(q_.sizes(), options.dtype(type)),
            .log_sums = at::empty({q_.size(0), q_.size(2), q_.size(1)}, options.dtype(at::kFloat))};
  }

  /// Writes attention to `out` if `first` (the queries' first keys); otherwise merges it into `out`.
  void attend(const std::vector<AttentionBlock>& blocks, const at::Tensor& keys_and_values, bool first,
              const AttentionOutputs& out) const {
    for (const AttentionBlock& block : blocks) {
      const AttentionOutputs found = kernels::attention_block(inputs(block, keys_and_values), options_.fused);
      const AttentionOutputs to = part_of(out, block);
      if (first) {
        to.y.copy_(found.y);
        to.log_sums.copy_(found.log_sums);
      } else {
        kernels::merge_attention(to, found);
      }
    }
  }

  /// Adds the blocks' gradients to dq and dkv, which are fp32. dkv: like the keys and values
  void add_gradients(const std::vector<AttentionBlock>& blocks, const at::Tensor& keys_and_values,
                     const AttentionOutputs& of, const at::Tensor& dy, const at::Tensor& dq,
                     const at::Tensor& dkv) const {
    for (const AttentionBlock& block : blocks) {
      const AttentionGradients found = kernels::attention_block_backward(
          inputs(block, keys_and_values), part_of(of, block), queries_of(dy, block), options_.fused);
      queries_of(dq, block).add_(found.dq);
      keys_of(dkv[0], block).add_(found.dk);
      keys_of(dkv[1], block).add_(found.dv);
    }
  }

  at::Tensor own_keys_and_values() const { return at::stack({k_, v_}); }
  at::Tensor zeros_like_in_float(const at::Tensor& x) const {
    return at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  }
  AttentionGradients gradients(const at::Tensor& dq, const at::Tensor& dkv) const {
    return {
        .dq = dq.to(q_.scalar_type()), .dk = dkv[0].to(k_.scalar_type()), .dv = dkv[1].to(v_.scalar_type())};
  }

  // ---- gather

  /// Copies between x, [2, B, T, ..], and the ranks' layout, [C, 2, B, 2, T / 2C, ..], chunk by chunk.
  template <typename Copy>
  void for_chunks(const at::Tensor& x, const at::Tensor& by_rank, const Copy& copy) const {
    for (int rank = 0; rank < cut_.degree; ++rank) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t chunk = cut_.chunks_of(rank)[static_cast<size_t>(half)];
        copy(x.narrow(2, chunk * length_, length_), by_rank[rank].narrow(2, half * length_, length_));
      }
    }
  }
  /// Shape of all ranks' parts, one after another.
  std::vector<int64_t> shape_by_rank() const {
    return {cut_.degree, 2, k_.size(0), k_.size(1), k_.size(2), k_.size(3)};
  }
  std::vector<int64_t> shape_of_all() const {
    return {2, k_.size(0), k_.size(1) * cut_.degree, k_.size(2), k_.size(3)};
  }

  at::Tensor gathered_keys_and_values(const char* pass) const {
    const at::Tensor own = own_keys_and_values(), by_rank = at::empty(shape_by_rank(), own.options());
    cut_.group->all_gather(by_rank.view({-1}), own.view({-1}), {.unit = kAttentionSite, .pass = pass})
        ->wait();
    at::Tensor all = at::empty(shape_of_all(), own.options());
    for_chunks(all, by_rank, [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
    return all;
  }

  AttentionOutputs forward_gathered() const {
    AttentionOutputs out = empty_outputs(q_.scalar_type());
    attend(blocks_of_all(), gathered_keys_and_values("forward"), /*first=*/true, out);
    return out;
  }

  AttentionGradients backward_gathered(const AttentionOutputs& of, const at::Tensor& dy) const {
    const at::Tensor dq = zeros_like_in_float(q_);
    at::Tensor by_rank;
    {
      const at::Tensor all = gathered_keys_and_values("backward"), dall = zeros_like_in_float(all);
      add_gradients(blocks_of_all(), all, of, dy, dq, dall);
      by_rank = at::empty(shape_by_rank(), dall.options());
      for_chunks(dall, by_rank, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
    }
    const at::Tensor dkv = at::empty_like(by_rank[0]);
    cut_.group
        ->reduce_scatter(dkv.view({-1}), by_rank.view({-1}), {.unit = kAttentionSite, .pass = "backward"})
        ->wait();
    return gradients(dq, dkv);
  }

  // ---- ring

  /// Rank of origin of the keys that this rank has in a step.
  int source(int step) const { return (cut_.rank - step + cut_.degree) % cut_.degree; }

  std::unique_ptr<comm::Work> send_on(const at::Tensor& to, const at::Tensor& from, const char* pass) const {
    return cut_.group->shift(to, from, {.unit = kAttentionSite, .pass = pass});
  }

  AttentionOutputs forward_in_ring() const {
    AttentionOutputs out = empty_outputs(at::kFloat);
    at::Tensor here = own_keys_and_values(), next;
    for (int step = 0; step < cut_.degree; ++step) {
      std::unique_ptr<comm::Work> coming;
      if (step + 1 < cut_.degree) {
        next = at::empty_like(here);
        coming = send_on(next, here, "forward");
      }
      attend(blocks(runs_of(source(step))), here, step == 0, out);
      if (!coming) break;
      coming->wait();
      here = std::exchange(next, {});
    }
    return {.y = out.y.to(q_.scalar_type()), .log_sums = out.log_sums};
  }

  /// Backward of the ring. Every shift overlaps with computation: the rank's own keys are computed in two
  /// portions. The first chunk with the later one's queries is computed while the first keys arrive, each
  /// chunk with itself while the last gradients return.
  AttentionGradients backward_in_ring(const AttentionOutputs& of, const at::Tensor& dy) const {
    const at::Tensor dq = zeros_like_in_float(q_);
    const at::Tensor own = own_keys_and_values(), of_own = zeros_like_in_float(own);
    const std::vector<TokenRun> chunks = runs_of(cut_.rank);
    std::vector<AttentionBlock> first, last = blocks({chunks[1]});
    for (const AttentionBlock& block : blocks({chunks[0]})) (block.causal ? last : first).push_back(block);

    at::Tensor here = own, next;
    // Sums of the gradients so far: of the current keys, and those arriving from the previous rank.
    at::Tensor sums, arriving;
    std::unique_ptr<comm::Work> coming, sums_coming;
    for (int step = 0; step < cut_.degree; ++step) {
      if (step + 1 < cut_.degree) {
        next = at::empty_like(here);
        coming = send_on(next, here, "backward");
      }
      if (step == 0) {
        add_gradients(first, here, of, dy, dq, of_own);
      } else {
        const at::Tensor added = zeros_like_in_float(here);
        add_gradients(blocks(runs_of(source(step))), here, of, dy, dq, added);
        if (sums_coming) {
          sums_coming->wait();
          added.add_(arriving);
        }
        sums = added;
        arriving = at::empty_like(sums);
        sums_coming = send_on(arriving, sums, "backward");
      }
      if (step + 1 < cut_.degree) {
        coming->wait();
        here = std::exchange(next, {});
      }
    }
    add_gradients(last, own, of, dy, dq, of_own);
    if (sums_coming) {
      sums_coming->wait();
      of_own.add_(arriving);
    }
    return gradients(dq, of_own);
  }

  const ContextAttentionOptions& options_;
  const CutSequence& cut_;
  const at::Tensor &q_, &k_, &v_;
  int64_t length_;  ///< length of a chunk
};

struct SavedOptions : torch::CustomClassHolder {
  explicit SavedOptions(ContextAttentionOptions options) : value(std::move(options)) {}
  ContextAttentionOptions value;
};

class ContextAttentionFunction final : public torch::autograd::Function<ContextAttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const ContextAttentionOptions& options) {
    const AttentionOutputs out = Layer(options, q, k, v).forward();
    context->save_for_backward({q, k, v, out.y, out.log_sums});
    context->saved_data["options"] = c10::IValue::make_capsule(c10::make_intrusive<SavedOptions>(options));
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["options"].toCapsule();
    const ContextAttentionOptions& options = static_cast<SavedOptions&>(*capsule).value;
    const auto [dq, dk, dv] =
        Layer(options, saved[0], saved[1], saved[2]).backward({saved[3], saved[4]}, gradients[0]);
    return {dq, dk, dv, {}};
  }
};

}  // namespace

at::Tensor context_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const ContextAttentionOptions& options) {
  FSDP_CHECK(options.cut != nullptr);
  return ContextAttentionFunction::apply(q, k, v, options);
}

}  // namespace fsdp::parallel
