#pragma once

// Linear layers of the same input as one product: one in forward and two in backward, instead of one and two
// for each layer. Their weights must lie one after another in memory, as they do in the unsharded buffer of a
// unit (shard/units/unit_layout.h). The layers' outputs lie side by side in the rows of one matrix, whose columns
// the functions below use without copying them apart.
//
// For CUDA devices, where each product is a launch, and a narrow one (the keys of grouped queries) does not
// fill a GPU. On the CPU, linears() (model/kernels/matmul.h) already packs the input once for all products.

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "model/kernels/matmul.h"

namespace fsdp::kernels {

/// Whether joined_linear() is of use for x and these weights: on a CUDA device, in types that can_fuse()
/// accepts, outside of regions of autocast to another type, with weights one after another. Meta weights that
/// stand for a CUDA device's are taken to be in one unit, and so one after another.
bool can_join(const at::Tensor& x, const std::vector<at::Tensor>& weights);

/// x: [..., in]; weights: [out_i, in], one after another -> [..., sum of out_i]: the outputs side by side
/// With `recomputed`, backward computes the result again (recomputed.h); not for one that is overwritten.
at::Tensor joined_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights, Matmul matmul,
                         bool recomputed = false);

/// swiglu() (model/kernels/fused.h) of gate and up side by side. both: [..., 2 I] -> [..., I]
at::Tensor joined_swiglu(const at::Tensor& both, bool recomputed = false);

/// Heads side by side in a result of joined_linear().
struct JoinedHeads {
  int64_t queries = 0, keys = 0;  ///< there are as many values as keys

  int64_t all() const { return queries + 2 * keys; }
};

/// Rotates the queries and keys (rotary() of model/kernels/fused.h) of a result of joined_linear(), which is
/// overwritten: the three results are views of it, so nothing else is kept for backward.
/// qkv: [B, T, (queries + 2 keys) head_dim]; cos, sin: [T, head_dim] fp32 ->
/// {q: [B, T, queries, head_dim], k: [B, T, keys, head_dim], v: like k}
std::array<at::Tensor, 3> joined_rotary(const at::Tensor& qkv, const JoinedHeads& heads,
                                        const at::Tensor& cos, const at::Tensor& sin);

/// Its two steps, without autograd: the rotation, or with `back` its inverse, which is that of gradients; and the
/// views.
void rotate_joined(const at::Tensor& qkv, const JoinedHeads& heads, const at::Tensor& cos,
                   const at::Tensor& sin, bool back);
std::array<at::Tensor, 3> split_joined(const at::Tensor& qkv, const JoinedHeads& heads);

}  // namespace fsdp::kernels
