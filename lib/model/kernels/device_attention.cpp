#include "model/kernels/device_attention.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>

#include <array>
#include <tuple>

#include "model/kernels/below_autograd.h"
#include "model/kernels/flash_attention.h"

namespace fsdp::kernels {
namespace {

using at::SDPBackend;

/// Limit on the last dimension. libtorch pads other heads for FlashAttention. Its choice for wider heads
/// depends on whether they require a gradient, which the views here do not.
constexpr int64_t kPaddedTo = 8, kWidestHead = 192;

/// Returns libtorch's choice; SDPBackend::error if it is another kernel.
SDPBackend chosen(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::ScalarType type = q.scalar_type();
  const bool fits = q.is_cuda() && q.numel() > 0 && at::isReducedFloatingType(type) &&
                    k.scalar_type() == type && v.scalar_type() == type && q.size(3) % kPaddedTo == 0 &&
                    q.size(3) <= kWidestHead;
  if (!fits) return SDPBackend::error;
  const SDPBackend choice = choice_of_libtorch(q, k, v);
  const bool known = choice == SDPBackend::cudnn_attention || choice == SDPBackend::flash_attention;
  return known ? choice : SDPBackend::error;
}

struct How {
  bool by_cudnn = false, differentiates = false;
};

/// Saves `others` after the tensors that backward needs of attention itself. -> [B, T, heads * head_dim]
at::Tensor attend(AutogradContext* context, const std::array<at::Tensor, 3>& qkv, const How& how,
                  const variable_list& others = {}) {
  const at::Tensor q = with_heads_first(qkv[0]), k = with_heads_first(qkv[1]), v = with_heads_first(qkv[2]);
  at::Tensor y, log_sums, bounds_q, bounds_k, seed, offset;
  auto results =
      std::tie(y, log_sums, bounds_q, bounds_k, std::ignore, std::ignore, seed, offset, std::ignore);
  if (how.by_cudnn) {
    results =
        at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/std::nullopt,
                                                /*compute_log_sumexp=*/how.differentiates, /*dropout_p=*/0,
                                                /*is_causal=*/true);
  } else {
    results = at::_scaled_dot_product_flash_attention(q, k, v, /*dropout_p=*/0, /*is_causal=*/true);
  }
  if (how.differentiates) {
    variable_list saved{q, k, v, y, log_sums, bounds_q, bounds_k, seed, offset};
    saved.insert(saved.end(), others.begin(), others.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["by_cudnn"] = how.by_cudnn;
  }
  return with_heads_first(y).reshape({q.size(0), q.size(2), q.size(1) * q.size(3)});
}

/// Returns the gradients of the queries, keys and values: [B, T, ..., head_dim]
std::array<at::Tensor, 3> gradients_of_attention(AutogradContext* context, const variable_list& saved,
                                                 const at::Tensor& given) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &y = saved[3], &log_sums = saved[4],
                   &bounds_q = saved[5], &bounds_k = saved[6], &seed = saved[7], &offset = saved[8];
  const int64_t length = q.size(2);
  const at::Tensor dy = with_heads_first(given.reshape({q.size(0), length, q.size(1), q.size(3)}));
  const auto [dq, dk, dv] = context->saved_data["by_cudnn"].toBool()
                                ? at::_scaled_dot_product_cudnn_attention_backward(
                                      dy, q, k, v, y, log_sums, seed, offset, /*attn_bias=*/at::Tensor(),
                                      bounds_q, bounds_k, length, length, /*dropout_p=*/0, /*is_causal=*/true)
                                : at::_scaled_dot_product_flash_attention_backward(
                                      dy, q, k, v, y, log_sums, bounds_q, bounds_k, length, length,
                                      /*dropout_p=*/0, /*is_causal=*/true, seed, offset);
  return {with_heads_first(dq), with_heads_first(dk), with_heads_first(dv)};
}

class DeviceAttention final : public torch::autograd::Function<DeviceAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const How& how) {
    const BelowAutograd below;
    return attend(context, {q, k, v}, how);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const auto [dq, dk, dv] = gradients_of_attention(context, context->get_saved_variables(), gradients[0]);
    return {dq, dk, dv, {}};
  }
};

class RotaryAttention final : public torch::autograd::Function<RotaryAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const JoinedHeads& heads,
                            const at::Tensor& cos, const at::Tensor& sin, const How& how) {
    const BelowAutograd below;
    rotate_joined(qkv, heads, cos, sin);
    return attend(context, split_joined(qkv, heads), how, {cos, sin});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    const auto [dq, dk, dv] = gradients_of_attention(context, saved, gradients[0]);
    return {joined_gradients({dq, dk, dv}, saved[9], saved[10]), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor device_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const SDPBackend choice = chosen(q, k, v);
  if (choice == SDPBackend::error) return {};
  const bool differentiates =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  return DeviceAttention::apply(
      q, k, v, How{.by_cudnn = choice == SDPBackend::cudnn_attention, .differentiates = differentiates});
}

at::Tensor rotary_attention(const at::Tensor& qkv, const JoinedHeads& heads, const at::Tensor& cos,
                            const at::Tensor& sin) {
  const auto [q, k, v] = split_joined(qkv, heads);
  const SDPBackend choice = chosen(q, k, v);
  if (choice == SDPBackend::error) return {};
  return RotaryAttention::apply(qkv, heads, cos, sin,
                                How{.by_cudnn = choice == SDPBackend::cudnn_attention,
                                    .differentiates = at::GradMode::is_enabled() && qkv.requires_grad()});
}

}  // namespace fsdp::kernels
