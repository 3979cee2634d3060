// Operations that libtorch has on CUDA only, by their formulas in fp32: attention as flash attention, the
// "memory-efficient" one and cuDNN's have it, with the same arguments by other numbers; the gradient of
// RMSNorm; and softmax, which takes fp16 to fp32 there.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
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

  /// In the type of the first tensor. Others, which libtorch's own kernels pass on to each other, are left
  /// out.
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

/// q: [B, heads, T, head_dim]; k, v: [B, key-value heads, L, head_dim]
struct Attention {
  at::Tensor q, k, v;
  bool is_causal;  ///< the last query sees all keys
  double scale;
  int64_t left = -1;  ///< keys before a query that it sees; below 0: all
  at::Tensor bias = {};

  /// For each query head. x: [B, key-value heads, L, head_dim]
  at::Tensor repeated(const at::Tensor& x) const { return x.repeat_interleave(q.size(1) / x.size(1), 1); }
  /// The reverse: summed over the query heads.
  at::Tensor added(const at::Tensor& x) const {
    return x.view({x.size(0), k.size(1), -1, x.size(2), x.size(3)}).sum(2);
  }

  at::Tensor scores() const {
    at::Tensor scores = at::matmul(q, repeated(k).transpose(-2, -1)) * scale;
    if (bias.defined()) scores += bias;
    if (is_causal) {
      const at::Tensor later = at::ones({q.size(2), k.size(2)}, at::kBool).triu(1 + k.size(2) - q.size(2));
      scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
    }
    if (left >= 0) {
      const at::Tensor before =
          at::ones({q.size(2), k.size(2)}, at::kBool).tril(k.size(2) - q.size(2) - left - 1);
      scores.masked_fill_(before, -std::numeric_limits<double>::infinity());
    }
    return scores;
  }

  struct Result {
    at::Tensor y, log_sums;  ///< like q; [B, heads, T]
  };
  Result result() const {
    const at::Tensor scores = this->scores(), log_sums = scores.logsumexp(-1);
    return {at::matmul((scores - log_sums.unsqueeze(-1)).exp(), repeated(v)), log_sums};
  }
  /// Of q, k and v.
  std::vector<at::Tensor> gradients(const at::Tensor& dy, const Result& result) const {
    const at::Tensor factors = (scores() - result.log_sums.unsqueeze(-1)).exp();
    const at::Tensor dfactors = at::matmul(dy, repeated(v).transpose(-2, -1));
    const at::Tensor dscores = factors * (dfactors - (dy * result.y).sum(-1, true)) * scale;
    return {at::matmul(dscores, repeated(k)), added(at::matmul(dscores.transpose(-2, -1), q)),
            added(at::matmul(factors.transpose(-2, -1), dy))};
  }
};

Attention attention_of(const Formula& a) {
  TORCH_CHECK(a.argument("dropout_p").toDouble() == 0, "the stand-in has no attention with dropout");
  const at::Tensor q = a.tensor("query");
  return {.q = q,
          .k = a.tensor("key"),
          .v = a.tensor("value"),
          .is_causal = a.argument("is_causal").toBool(),
          .scale = a.has("scale") ? a.argument("scale").toDouble()
                                  : 1 / std::sqrt(static_cast<double>(q.size(-1))),
          .left = a.has("window_size_left") ? a.argument("window_size_left").toInt() : -1,
          .bias = a.tensor("attn_bias")};
}

void attend(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const auto [y, log_sums] = attention_of(a).result();
  // Token by token, as libtorch's kernels leave it.
  const at::ScalarType type = a.argument("query").toTensor().scalar_type();
  stack.emplace_back(y.transpose(1, 2).contiguous().to(type).transpose(1, 2));
  stack.emplace_back(log_sums);
  a.leave_out_others(stack);
}

void attend_backward(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const at::Tensor dy = a.tensor(a.has("grad_out") ? "grad_out" : "grad_out_");
  a.put(stack, attention_of(a).gradients(dy, {a.tensor("out"), a.tensor("logsumexp")}));
}

/// Flash attention itself has heads behind tokens, and texts of any lengths one after another
/// [tokens, heads, head_dim], which begin and end at the bounds `cum_seq_q`; or rows [B, T, heads, head_dim].
class Texts {
 public:
  explicit Texts(const Formula& a) : all_(attention_of(a)) {
    if (!a.has("cum_seq_q") || !a.argument("cum_seq_q").toTensor().defined()) return;
    const at::Tensor bounds = a.argument("cum_seq_q").toTensor().to(at::kLong).contiguous();
    bounds_.assign(bounds.const_data_ptr<int64_t>(), bounds.const_data_ptr<int64_t>() + bounds.numel());
    bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());  // texts without a token
  }

  size_t count() const { return bounds_.empty() ? 1 : bounds_.size() - 1; }
  Attention text(size_t i) const {
    Attention text = all_;
    for (at::Tensor* each : {&text.q, &text.k, &text.v}) *each = part(*each, i);
    return text;
  }
  /// x: like q -> [B, heads, T, head_dim]
  at::Tensor part(const at::Tensor& x, size_t i) const {
    return (bounds_.empty() ? x : x.narrow(0, bounds_[i], length(i)).unsqueeze(0)).transpose(1, 2);
  }
  /// x: [heads, tokens], or [B, heads, T] -> [B, heads, T]
  at::Tensor part_of_sums(const at::Tensor& x, size_t i) const {
    return bounds_.empty() ? x : x.narrow(1, bounds_[i], length(i)).unsqueeze(0);
  }
  /// The reverse of part().
  at::Tensor together(std::vector<at::Tensor> parts) const {
    for (at::Tensor& each : parts) each = each.transpose(1, 2);
    return bounds_.empty() ? parts[0].contiguous() : at::cat(parts, 1).squeeze(0);
  }
  at::Tensor sums_together(const std::vector<at::Tensor>& parts) const {
    return bounds_.empty() ? parts[0] : at::cat(parts, 2).squeeze(0);
  }

 private:
  int64_t length(size_t i) const { return bounds_[i + 1] - bounds_[i]; }

  Attention all_;
  std::vector<int64_t> bounds_;  ///< empty: rows
};

void attend_to_texts(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const Texts texts(a);
  std::vector<at::Tensor> results, sums;
  for (size_t i = 0; i < texts.count(); ++i) {
    const auto [y, log_sums] = texts.text(i).result();
    results.push_back(y);
    sums.push_back(log_sums);
  }
  stack.emplace_back(texts.together(results).to(a.argument("query").toTensor().scalar_type()));
  stack.emplace_back(texts.sums_together(sums));
  a.leave_out_others(stack);
}

void attend_to_texts_backward(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const Texts texts(a);
  const at::Tensor dy = a.tensor("grad_out"), y = a.tensor("out"), log_sums = a.tensor("logsumexp");
  std::vector<std::vector<at::Tensor>> gradients(3);
  for (size_t i = 0; i < texts.count(); ++i) {
    const auto of_text =
        texts.text(i).gradients(texts.part(dy, i), {texts.part(y, i), texts.part_of_sums(log_sums, i)});
    for (size_t each = 0; each < 3; ++each) gradients[each].push_back(of_text[each]);
  }
  std::vector<at::Tensor> results;
  for (const auto& each : gradients) results.push_back(texts.together(each));
  a.put(stack, results);
}

void rms_norm_backward(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const at::Tensor dy = a.tensor("grad_out"), weight = a.tensor("weight"), reciprocal = a.tensor("rstd");
  const at::Tensor normed = a.tensor("input") * reciprocal, scaled = weight.defined() ? dy * weight : dy;
  std::vector<at::Tensor> results{(scaled - normed * (scaled * normed).mean(-1, true)) * reciprocal};
  if (weight.defined()) results.push_back((dy * normed).reshape({-1, normed.size(-1)}).sum(0));
  a.put(stack, results);
}

/// With a result in fp32 of numbers in fp16, too.
void softmax(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const at::ScalarType type =
      a.argument("half_to_float").toBool() ? at::kFloat : a.argument("self").toTensor().scalar_type();
  stack.emplace_back(at::softmax(a.tensor("self"), a.argument("dim").toInt()).to(type));
}

void softmax_backward(const c10::FunctionSchema& schema, Stack& stack) {
  const Formula a(schema, stack);
  const at::Tensor dy = a.tensor("grad_output"), y = a.tensor("output");
  const at::Tensor sum = (dy * y).sum(a.argument("dim").toInt(), /*keepdim=*/true);
  stack.emplace_back((y * (dy - sum)).to(a.argument("input_dtype").toScalarType()));
}

}  // namespace

Computation formula_of(std::string_view operation) {
  if (operation == "_fused_rms_norm_backward") return rms_norm_backward;
  if (operation == "_softmax") return softmax;
  if (operation == "_softmax_backward_data") return softmax_backward;
  if (operation == "_flash_attention_forward") return attend_to_texts;
  if (operation == "_flash_attention_backward") return attend_to_texts_backward;
  if (!operation.starts_with("_scaled_dot_product_")) return nullptr;
  if (operation.ends_with("_attention")) return attend;
  return operation.ends_with("_attention_backward") ? attend_backward : nullptr;
}

}  // namespace standin
