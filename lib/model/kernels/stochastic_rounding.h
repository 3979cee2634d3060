#pragma once

// Stochastic rounding of fp32 values to 16 bits: to one of the two neighbours, to each with a probability in
// proportion to the distance from the other, so that the mean of many roundings is the value (Gupta et al.:
// Deep learning with limited numerical precision, 2015, section 3). Small changes of a weight that rounding
// to nearest would lose are kept on average.
//
// The random numbers are a hash of a key and of the element's index in its tensor. They are the same on all
// devices and however the tensor is cut.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/util/rectangle.h"

namespace fsdp::kernels {

/// The elements of a tensor that a flat piece of memory has.
struct RoundedElements {
  uint64_t key = 0;        ///< a random number, the same for all elements of the tensor
  int64_t columns = 1;     ///< columns of the whole tensor in the view of `part`
  util::Rectangle part{};  ///< part of the tensor
  int64_t first = 0;       ///< index in the part of the piece's first element
};

/// Rounds values, [n] fp32, to `to`, [n] bf16 or fp16; both contiguous on one device. Values that are not
/// finite remain so. A finite value beyond the largest finite number becomes that number. In fp16, values
/// from 2^16 on, which would be the next number, overflow to infinity.
void round_stochastically(const at::Tensor& values, const at::Tensor& to, const RoundedElements& elements);

/// Does the same by tensor operations, on any device.
void round_stochastically_composed(const at::Tensor& values, const at::Tensor& to,
                                   const RoundedElements& elements);

}  // namespace fsdp::kernels
