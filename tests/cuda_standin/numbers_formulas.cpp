// Operations that libtorch has on CUDA only, by their formulas in fp32: attention as flash attention, the
// "memory-efficient" one and cuDNN's have it, with the same arguments by other numbers; and the gradient of RMSNorm.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "numbers.h"

namespace standin {
namespace {

/// A call with arguments by name.
class Formula {
 public:
  Formula(const c10::FunctionSchema& schema, Stack& stack) : schema_(schema), arguments_(std::move(stack)) {
    stack.clear();
  }

  bool has(const char* name) const {
    const auto index = schema_.argumentIndexWithName(name);
    return index && !arguments_[static_cast<size_t>(*index)].isNone();
  }
  const c10::IValue& argument(const char* name) const {
    return arguments_.at(static_cast<size_t>(schema_.argumentIndexWithName(name).value()));
  }
  /// In fp32; undefined if there is none.
  at::Tensor tensor(const char* name) const {
    if (!has(name) || !argument(name).toTensor().defined()) return {};
    return argument(name).toTensor().to(at::kFloat);
  }

  /// In the type of the first tensor. Others, which libtorch's own kernels pass on to each other, are left out.
  void put(Stack& stack, const std::vector<at::Tensor>& results) const {
    const at::ScalarType type = arguments_[0].toTensor().scalar_type();
    for (const at::Tensor& result : results) stack.emplace_back(result.to(type));
    leave_out_others(stack);
  }
  void leave_out_others(Stack& stack) const {
    for (size_t i = stack.size(); i < schema_.returns().size(); ++i) {
      const bool is_tensor = schema_.returns()[i].type()->kind() == c10::TypeKind::TensorType;
      stack.push_back(is_tensor ? c10::IValue(at::Tensor()) : c10::IValue(int64_t{0}));
    }
  }

 private:
  const c10::FunctionSchema& schema_;
  Stack arguments_;
};

struct Attention : Formula {
  Attention(const c10::FunctionSchema& schema, Stack& stack) : Formula(schema, stack) {
    TORCH_CHECK(argument("dropout_p").toDouble() == 0, "the stand-in has no attention with dropout");
    if (has("scale")) scale = argument("scale").toDouble();
  }

  /// For each query head. x: [B, key-value heads, T, head_dim]
  at::Tensor repeated(const at::Tensor& x) const { return x.repeat_interleave(q.size(1) / x.size(1), 1); }
  /// The reverse: summed over the query heads.
  at::Tensor added(const at::Tensor& x) const {
    return x.view({x.size(0), k.size(1), -1, x.size(2), x.size(3)}).sum(2);
  }

  at::Tensor scores() const {
    at::Tensor scores = at::matmul(q, repeated(k).transpose(-2, -1)) * scale;
    if (const at::Tensor bias = tensor("attn_bias"); bias.defined()) scores += bias;
    if (argument("is_causal").toBool()) {
      const at::Tensor later = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1);
      scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
    }
    return scores;
  }

  at::Tensor q = tensor("query"), k = tensor("key"), v = tensor("value");
  double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
};

void attend(const c10::FunctionSchema& schema, Stack& stack) {
  const Attention a(schema, stack);
  const at::Tensor scores = a.scores(), log_sums = scores.logsumexp(-1);
  const at::Tensor y = at::matmul((scores - log_sums.unsqueeze(-1)).exp(), a.repeated(a.v));
  // Token by token, as libtorch's kernels leave it.
  const at::ScalarType type = a.argument("query").toTensor().scalar_type();
  stack.emplace_back(y.transpose(1, 2).contiguous().to(type).transpose(1, 2));
  stack.emplace_back(log_sums);
  a.leave_out_others(stack);
}

void attend_backward(const c10::FunctionSchema& schema, Stack& stack) {
  const Attention a(schema, stack);
  const at::Tensor dy = a.tensor(a.has("grad_out") ? "grad_out" : "grad_out_");
  const at::Tensor factors = (a.scores() - a.tensor("logsumexp").unsqueeze(-1)).exp();
  const at::Tensor dfactors = at::matmul(dy, a.repeated(a.v).transpose(-2, -1));
  const at::Tensor dscores = factors * (dfactors - (dy * a.tensor("out")).sum(-1, true)) * a.scale;
  a.put(stack, {at::matmul(dscores, a.repeated(a.k)), a.added(at::matmul(dscores.transpose(-2, -1), a.q)),
                a.added(at::matmul(factors.transpose(-2, -1), dy))});
}

void rms_norm_backward(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const at::Tensor dy = a.tensor("grad_out"), weight = a.tensor("weight"), reciprocal = a.tensor("rstd");
  const at::Tensor normed = a.tensor("input") * reciprocal, scaled = weight.defined() ? dy * weight : dy;
  std::vector<at::Tensor> results{(scaled - normed * (scaled * normed).mean(-1, true)) * reciprocal};
  if (weight.defined()) results.push_back((dy * normed).reshape({-1, normed.size(-1)}).sum(0));
  a.put(stack, results);
}

}  // namespace

Computation formula_of(std::string_view operation) {
  if (operation == "_fused_rms_norm_backward") return rms_norm_backward;
  if (!operation.starts_with("_scaled_dot_product_")) return nullptr;
  if (operation.ends_with("_attention")) return attend;
  return operation.ends_with("_attention_backward") ? attend_backward : nullptr;
}

}  // namespace standin
