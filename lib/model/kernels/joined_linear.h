#pragma once

// Linear layers of the same input as one product: one in forward and two in backward, instead of one and two
// for each layer. Their weights must be consecutive in memory, as they are in the unsharded buffer of a unit
// (shard/units/unit_layout.h). The layers' outputs are side by side in the rows of one matrix, whose columns
// the functions below use without copies.
//
// This is for CUDA devices, where each product is a launch, and a narrow one (the keys of grouped queries)
// does not fill a GPU. On the CPU, linears() (model/kernels/matmul.h) already packs the input once for all
// products.

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "model/kernels/matmul.h"

namespace fsdp::kernels {

/// Whether joined_linear() is useful for x and these weights: on a CUDA device, in types that can_fuse()
/// accepts, outside of regions of autocast to another type, with consecutive weights. Meta weights that
/// represent a CUDA device's are assumed to be in one unit, and so consecutive.
bool can_join(const at::Tensor& x, const std::vector<at::Tensor>& weights);

/// Returns the outputs side by side. x: [..., in]; weights: [out_i, in], consecutive -> [..., sum of out_i].
/// With `recomputed`, backward computes the result again (recomputed.h), unless the result is overwritten.
at::Tensor joined_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights, Matmul matmul,
                         bool recomputed = false);

/// Returns swiglu() (model/kernels/fused.h) of gate and up side by side. both: [..., 2 I] -> [..., I]
at::Tensor joined_swiglu(const at::Tensor& both, bool recomputed = false);

/// Heads side by side in a result of joined_linear().
struct JoinedHeads {
  int64_t queries = 0, keys = 0;  ///< heads of queries and of keys; values have as many as keys

  int64_t all() const { return queries + 2 * keys; }
};

/// Rotates the queries and keys (rotary() of model/kernels/fused.h) of a result of joined_linear(), which is
/// overwritten: the three results are views of it, so nothing else is kept for backward.
/// qkv: [B, T, (queries + 2 keys) head_dim]; cos, sin: [T, head_dim] fp32 ->
/// {q: [B, T, queries, head_dim], k: [B, T, keys, head_dim], v: like k}
std::array<at::Tensor, 3> joined_rotary(const at::Tensor& qkv, const JoinedHeads& heads,
                                        const at::Tensor& cos, const at::Tensor& sin);

/// Returns the same views of the result of a layer with this bias, without rotation. Backward joins their
/// gradients and computes the bias's in one pass, so the layer must not (transposed_linear() in
/// model/kernels/matmul.h). bias: [(queries + 2 keys) head_dim] of qkv's type
std::array<at::Tensor, 3> joined_split(const at::Tensor& qkv, const JoinedHeads& heads,
                                       const at::Tensor& bias);

/// The two steps of joined_rotary(), without autograd: the rotation, and the views; and its backward, from
/// the gradients of the three results, each of any strides.
void rotate_joined(const at::Tensor& qkv, const JoinedHeads& heads, const at::Tensor& cos,
                   const at::Tensor& sin);
at::Tensor joined_gradients(const std::array<at::Tensor, 3>& gradients, const at::Tensor& cos,
                            const at::Tensor& sin);
std::array<at::Tensor, 3> split_joined(const at::Tensor& qkv, const JoinedHeads& heads);

}  // namespace fsdp::kernels
