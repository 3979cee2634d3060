#include "model/kernels/joined_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/element.h"
#include "model/kernels/fused.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/joined_weights.h"
#include "model/kernels/meta.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/reduce.h"
#include "model/kernels/row_kernels.h"

namespace fsdp::kernels {
namespace {

/// Computes y = x W^T with the joined weights. x: [..., in]
class JoinedLinear final : public torch::autograd::Function<JoinedLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, at::TensorList,
                            const Parameters& parameters, Matmul matmul, bool recomputed) {
    const BelowAutograd below;
    const at::TensorList weights = parameters.tensors;
    const at::Tensor x = as_matrix(given);
    variable_list saved{recomputed || any_is_trained(parameters.tensors) ? x : at::Tensor()};
    saved.insert(saved.end(), weights.begin(), weights.end());
    save_operands(*context, std::move(saved), {{0, given}});
    context->saved_data["matmul"] = static_cast<int64_t>(matmul);
    if (recomputed) context->saved_data["shape"] = given.sizes();
    return shaped(product(x, joined(weights), matmul), given);
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    const at::Tensor y = product(as_matrix(saved[0]), joined(at::TensorList(saved).slice(1)),
                                 static_cast<Matmul>(context->saved_data["matmul"].toInt()));
    return {shaped(y, context->saved_data["shape"].toIntVector())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const at::TensorList weights = at::TensorList(saved).slice(1);
    const auto matmul = static_cast<Matmul>(context->saved_data["matmul"].toInt());
    const at::Tensor dy = as_matrix(gradients[0]);
    variable_list results(saved.size() + 3);
    if (context->needs_input_grad(0)) {
      results[0] = shaped(product(dy, flipped(joined(weights)), matmul), gradients[0]);
    }
    bool all_need = true, none_needs = true;
    for (size_t i = 0; i < weights.size(); ++i) {
      (is_wanted(*context, i + 1, weights[i]) ? none_needs : all_need) = false;
    }
    if (none_needs) return results;
    const at::Tensor x = as_matrix(saved[0]);
    const at::Tensor a = flipped(dy), b = flipped(x);
    if (all_need && write(take_joined_place(weights, at::kFloat, a.scalar_type()), a, b, matmul))
      return results;
    at::Tensor gradient;
    for (int64_t i = 0, row = 0; i < std::ssize(weights); row += weights[static_cast<size_t>(i++)].size(0)) {
      const size_t at = static_cast<size_t>(i) + 1;
      const at::Tensor& weight = saved[at];
      if (!is_wanted(*context, at, weight)) continue;
      auto place = take_gradient_place(weight, at::kFloat);
      if (!place) place = take_gradient_place(weight, a.scalar_type());
      if (write(place, a.narrow(0, row, weight.size(0)), b, matmul)) continue;
      if (!gradient.defined()) gradient = product(a, b, matmul);
      results[at] = deliver(*context, at, weight, gradient.narrow(0, row, weight.size(0)));
    }
    return results;
  }

 private:
  /// Writes the product of a and b^T to the place, if there is one.
  static bool write(std::optional<GradientSink::SinkPlace> place, const at::Tensor& a, const at::Tensor& b,
                    Matmul matmul) {
    if (!place) return false;
    place->adds ? add_product(place->memory, a, b, matmul) : product_into(place->memory, a, b, matmul);
    return true;
  }
};

class JoinedSwiGlu final : public torch::autograd::Function<JoinedSwiGlu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given) {
    const BelowAutograd below;
    const at::Tensor both = given.contiguous();
    save_operands(*context, {both}, {{0, given}});
    return run(both);
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    return {run(operands_of(*context, OperandUse::kForwardAgain)[0].contiguous())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const at::Tensor both = operands_of(*context)[0].contiguous(), dy = gradients[0].contiguous();
    at::Tensor dboth = at::empty_like(both);
    KernelsFor(both)->swiglu_backward({.dy = dy.data_ptr(),
                                       .gate = both.data_ptr(),
                                       .up = second_half(both),
                                       .dgate = dboth.data_ptr(),
                                       .dup = second_half(dboth),
                                       .rows = rows_of(both),
                                       .width = both.size(-1) / 2,
                                       .stride = both.size(-1)});
    return {dboth};
  }

 private:
  static at::Tensor run(const at::Tensor& both) {
    std::vector<int64_t> shape = both.sizes().vec();
    shape.back() /= 2;
    at::Tensor y = at::empty(shape, both.options());
    KernelsFor(both)->swiglu({.gate = both.data_ptr(),
                              .up = second_half(both),
                              .y = y.data_ptr(),
                              .rows = rows_of(both),
                              .width = shape.back(),
                              .stride = both.size(-1)});
    return y;
  }
  static void* second_half(const at::Tensor& both) {
    if (both.is_meta()) return nullptr;
    return static_cast<char*>(both.data_ptr()) + static_cast<size_t>(both.size(-1) / 2) * both.element_size();
  }
};

class JoinedRotary final : public torch::autograd::Function<JoinedRotary> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv, const JoinedHeads& heads,
                               const at::Tensor& cos, const at::Tensor& sin) {
    const BelowAutograd below;
    context->save_for_backward({cos, sin});
    rotate_joined(qkv, heads, cos, sin);
    const auto [q, k, v] = split_joined(qkv, heads);
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    return {joined_gradients({gradients[0], gradients[1], gradients[2]}, saved[0], saved[1]), {}, {}, {}};
  }
};

/// The launch's arguments, without angles. Rows of heads are [.., head_dim] with a last stride of 1.
cuda::JoinedGradients to_be_joined(const std::array<at::Tensor, 3>& gradients, const at::Tensor& dqkv) {
  const auto heads_of = [](const at::Tensor& x) -> cuda::JoinedGradients::Heads {
    return {x.const_data_ptr(), x.size(2), x.stride(0), x.stride(1), x.stride(2)};
  };
  return {.queries = heads_of(gradients[0]),
          .keys = heads_of(gradients[1]),
          .values = heads_of(gradients[2]),
          .y = dqkv.data_ptr(),
          .sequences = dqkv.size(0),
          .tokens = dqkv.size(1),
          .head_dim = gradients[0].size(3)};
}

class JoinedSplit final : public torch::autograd::Function<JoinedSplit> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor&,
                               const Parameters& parameters, const JoinedHeads& heads) {
    const BelowAutograd below;
    context->save_for_backward({parameters.tensors[0]});
    const auto [q, k, v] = split_joined(qkv, heads);
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const at::Tensor bias = context->get_saved_variables()[0];
    const bool is_trained = is_wanted(*context, 1, bias);
    if (!is_for_cuda(gradients[0])) {
      const at::Tensor dqkv = at::cat(gradients, 2).flatten(2);
      return {
          dqkv, is_trained ? deliver(*context, 1, bias, gradient_of_bias(dqkv, bias)) : at::Tensor(), {}, {}};
    }
    const at::Tensor &dq = gradients[0],
                     dqkv = at::empty({dq.size(0), dq.size(1), bias.size(0)}, dq.options());
    const ParameterSums sums(dqkv, 1);
    if (!dq.is_meta()) join(gradients, dqkv, is_trained ? sums.of(0) : nullptr, sums.parts());
    return {dqkv, is_trained ? deliver(*context, 1, bias, sums.gradients({bias})[0]) : at::Tensor(), {}, {}};
  }

 private:
  static void join(const variable_list& gradients, const at::Tensor& dqkv, float* sums,
                   const RowParts& parts) {
    const c10::DeviceGuard guard(dqkv.device());
    const auto in_rows = [](const at::Tensor& x) {
      return x.stride(3) == 1 && x.stride(0) == x.size(1) * x.stride(1) ? x : x.contiguous();
    };
    const std::array<at::Tensor, 3> heads{in_rows(gradients[0]), in_rows(gradients[1]),
                                          in_rows(gradients[2])};
    cuda::join_rows(element_of(dqkv), to_be_joined(heads, dqkv), sums, parts);
  }
};

/// Rotates queries and keys or, if `back`, turns their gradients back.
void turn_joined(const at::Tensor& qkv, const JoinedHeads& heads, const at::Tensor& cos,
                 const at::Tensor& sin, bool back) {
  const int64_t head_dim = qkv.size(2) / heads.all();
  FSDP_CHECK(can_fuse(qkv) && qkv.dim() == 3 && qkv.is_contiguous() && head_dim % 2 == 0 &&
             qkv.size(2) == head_dim * heads.all() && cos.scalar_type() == at::kFloat &&
             sin.scalar_type() == at::kFloat && cos.is_contiguous() && sin.is_contiguous() &&
             cos.size(0) >= qkv.size(1) && cos.size(1) == head_dim);
  KernelsFor(qkv)->rotary({.x = qkv.data_ptr(),
                           .y = qkv.data_ptr(),
                           .cos = cos.data_ptr<float>(),
                           .sin = sin.data_ptr<float>(),
                           .rows = qkv.size(0) * qkv.size(1),
                           .tokens = qkv.size(1),
                           .heads = heads.queries + heads.keys,
                           .head_dim = head_dim,
                           .stride = qkv.size(2),
                           .back = back});
}

}  // namespace

bool can_join(const at::Tensor& given, const std::vector<at::Tensor>& weights) {
  if (!is_for_cuda(given) || given.numel() == 0) return false;
  const at::Tensor x = autocast_operand(given);
  const bool alike = std::all_of(weights.begin(), weights.end(), [&](const at::Tensor& weight) {
    return weight.scalar_type() == x.scalar_type() && weight.size(1) == weights[0].size(1);
  });
  return can_fuse(x) && alike && (x.is_meta() || lie_in_sequence(weights));
}

at::Tensor joined_linear(const at::Tensor& given, const std::vector<at::Tensor>& weights, Matmul matmul,
                         bool recomputed) {
  const at::Tensor x = autocast_operand(given);
  FSDP_CHECK(weights[0].is_meta() || lie_in_sequence(weights));
  const std::vector<at::Tensor> seen = seen_parameters(weights, x);
  const at::Tensor y = JoinedLinear::apply(x, at::TensorList(seen), Parameters{weights}, matmul, recomputed);
  if (recomputed) recompute_results<JoinedLinear>(y);
  return y;
}

at::Tensor joined_swiglu(const at::Tensor& both, bool recomputed) {
  FSDP_CHECK(can_fuse(both) && both.size(-1) % 2 == 0);
  const at::Tensor y = JoinedSwiGlu::apply(both);
  if (recomputed || is_for_cpu(both)) recompute_results<JoinedSwiGlu>(y);
  return y;
}

void rotate_joined(const at::Tensor& qkv, const JoinedHeads& heads, const at::Tensor& cos,
                   const at::Tensor& sin) {
  turn_joined(qkv, heads, cos, sin, /*back=*/false);
}

at::Tensor joined_gradients(const std::array<at::Tensor, 3>& gradients, const at::Tensor& cos,
                            const at::Tensor& sin) {
  const at::Tensor& dq = gradients[0];
  const JoinedHeads heads{.queries = dq.size(2), .keys = gradients[1].size(2)};
  if (!is_for_cuda(dq)) {
    const at::Tensor dqkv = at::cat(gradients, 2).flatten(2);
    turn_joined(dqkv, heads, cos, sin, /*back=*/true);
    return dqkv;
  }
  at::Tensor dqkv = at::empty({dq.size(0), dq.size(1), heads.all() * dq.size(3)}, dq.options());
  if (dq.is_meta()) return dqkv;
  FSDP_CHECK(cos.is_contiguous() && sin.is_contiguous() && cos.size(0) >= dq.size(1) &&
             cos.size(1) == dq.size(3));
  const c10::DeviceGuard guard(dq.device());
  const auto dense = [](const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); };
  const std::array<at::Tensor, 3> parts{dense(dq), dense(gradients[1]), dense(gradients[2])};
  cuda::JoinedGradients arguments = to_be_joined(parts, dqkv);
  arguments.cos = cos.const_data_ptr<float>();
  arguments.sin = sin.const_data_ptr<float>();
  cuda::join_rotary(element_of(dq), arguments);
  return dqkv;
}

std::array<at::Tensor, 3> split_joined(const at::Tensor& qkv, const JoinedHeads& heads) {
  const int64_t rows = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2), head_dim = width / heads.all();
  const auto part = [&](int64_t count, int64_t first) {
    return strided_view(qkv, {rows, tokens, count, head_dim}, {tokens * width, width, head_dim, 1},
                        first * head_dim);
  };
  return {part(heads.queries, 0), part(heads.keys, heads.queries),
          part(heads.keys, heads.queries + heads.keys)};
}

std::array<at::Tensor, 3> joined_rotary(const at::Tensor& qkv, const JoinedHeads& heads,
                                        const at::Tensor& cos, const at::Tensor& sin) {
  const variable_list results = JoinedRotary::apply(qkv, heads, cos, sin);
  return {results[0], results[1], results[2]};
}

std::array<at::Tensor, 3> joined_split(const at::Tensor& qkv, const JoinedHeads& heads,
                                       const at::Tensor& bias) {
  FSDP_CHECK(can_fuse(qkv) && qkv.dim() == 3 && qkv.is_contiguous() && qkv.size(2) % heads.all() == 0 &&
             bias.dim() == 1 && bias.size(0) == qkv.size(2) && bias.scalar_type() == qkv.scalar_type());
  const variable_list results = JoinedSplit::apply(qkv, seen_parameter(bias, qkv), Parameters{{bias}}, heads);
  return {results[0], results[1], results[2]};
}

}  // namespace fsdp::kernels
