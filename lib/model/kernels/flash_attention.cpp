#include "model/kernels/flash_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/util/error.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/meta.h"

namespace fsdp::kernels {
namespace {

// Limits of the kernels (mha_varlen_fwd() in libtorch's aten/src/ATen/native/transformers/cuda/flash_attn).
constexpr int64_t kHeadDimMultiple = 8, kMostHeadDim = 256;

std::optional<double> scale_of(const AttentionForm& form) {
  return form.scale > 0 ? std::optional(form.scale) : std::nullopt;
}

/// Number of tokens before a query that it attends to.
std::optional<int64_t> left_of(const AttentionForm& form) {
  return form.window > 0 ? std::optional(form.window - 1) : std::nullopt;
}

}  // namespace

at::SDPBackend choice_of_libtorch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  // A row's last tokens are causal too, but libtorch expresses this by a mask, which no fused kernel accepts.
  const bool is_causal = q.size(1) == k.size(1);
  return static_cast<at::SDPBackend>(at::_fused_sdp_choice(
      with_heads_first(q), with_heads_first(k), with_heads_first(v), /*attn_mask=*/std::nullopt,
      /*dropout_p=*/0, is_causal, /*scale=*/std::nullopt, /*enable_gqa=*/q.size(2) != k.size(2)));
}

bool can_use_flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::ScalarType type = q.scalar_type();
  if (!is_for_cuda(q) || q.numel() == 0 || !at::isReducedFloatingType(type) || k.scalar_type() != type ||
      v.scalar_type() != type || q.size(3) % kHeadDimMultiple != 0 || q.size(3) > kMostHeadDim) {
    return false;
  }
  if (q.is_meta()) return true;
  // cuDNN's kernels have all the requirements of these kernels.
  const at::SDPBackend choice = choice_of_libtorch(q, k, v);
  return choice == at::SDPBackend::flash_attention || choice == at::SDPBackend::cudnn_attention;
}

at::Tensor flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const PackedDocuments& documents, const AttentionForm& form) {
  FSDP_CHECK(documents.bounds.dim() == 1 && documents.bounds.scalar_type() == at::kInt &&
                 documents.bounds.device() == q.device(),
             documents.bounds.sizes(), documents.bounds.device());
  FSDP_CHECK(form.cap == 0, "flash attention has no cap");
  // For documents of one token, libtorch would swap heads and tokens, which its backward does not support.
  const int64_t longest = std::max<int64_t>(documents.longest, 2);
  return std::get<0>(at::_flash_attention_forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1),
                                                  documents.bounds, documents.bounds, longest, longest,
                                                  /*dropout_p=*/0, /*is_causal=*/true,
                                                  /*return_debug_mask=*/false, scale_of(form), left_of(form)))
      .view(q.sizes());
}

at::Tensor flash_attention_to_earlier(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionForm& form) {
  FSDP_CHECK(form.cap == 0, "flash attention has no cap");
  // The kernels' causality applies to the last tokens ("bottom right").
  return std::get<0>(at::_flash_attention_forward(q, k, v, /*cum_seq_q=*/std::nullopt,
                                                  /*cum_seq_k=*/std::nullopt, q.size(1), k.size(1),
                                                  /*dropout_p=*/0, /*is_causal=*/true,
                                                  /*return_debug_mask=*/false, scale_of(form),
                                                  left_of(form)));
}

AttentionOutputs flash_attention_with_log_sums(const AttentionInputs& in) {
  const auto found = at::_flash_attention_forward(in.q, in.k, in.v, /*cum_seq_q=*/std::nullopt,
                                                  /*cum_seq_k=*/std::nullopt, in.q.size(1), in.k.size(1),
                                                  /*dropout_p=*/0, in.causal, /*return_debug_mask=*/false);
  return {std::get<0>(found), std::get<1>(found)};
}

AttentionGradients flash_attention_backward(const AttentionInputs& in, const AttentionOutputs& of,
                                            const at::Tensor& dy) {
  // These are random numbers, used by dropout only.
  const at::Tensor none = at::empty({0}, in.q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      dy, in.q, in.k, in.v, of.y, of.log_sums.contiguous(), /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, in.q.size(1),
      in.k.size(1), /*dropout_p=*/0, in.causal, none, none);
  return {dq, dk, dv};
}

const char* name_of_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  switch (choice_of_libtorch(q, k, v)) {
    case at::SDPBackend::cudnn_attention:
      return "cuDNN";
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::efficient_attention:
      return "memory-efficient";
    default:
      return "no fused";
  }
}

}  // namespace fsdp::kernels
