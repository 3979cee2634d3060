#pragma once

// Stochastic rounding of fp32 values to 16 bits: to one of the two neighbours, to each with a probability in
// proportion to the distance from the other, so that the mean of many roundings is the value (Gupta et al.:
// Deep learning with limited numerical precision, 2015, section 3). Small changes of a weight that rounding
// to nearest would lose are kept on average.
//
// The random numbers come from a hash of a key and of the element's index in its tensor. They are the same
// on all devices and however the tensor is cut.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/util/rectangle.h"

namespace fsdp::kernels {

/// Which elements of a tensor a flat piece of memory holds.
struct RoundedElements {
  uint64_t key = 0;        ///< a random number, the same for all elements of the tensor
  int64_t columns = 1;     ///< of the whole tensor, seen as `part` sees it
  util::Rectangle part{};  ///< of the tensor
  int64_t first = 0;       ///< the piece begins with this element of the part
};

/// Rounds values, [n] fp32, to `to`, [n] bf16 or fp16; both contiguous on one device. Values that are not
/// finite stay so. A finite value beyond the largest finite number becomes that number, but from 2^16 on,
/// which would be the next, fp16 overflows to infinity.
void round_stochastically(const at::Tensor& values, const at::Tensor& to, const RoundedElements& elements);

/// The same by tensor operations, on any device.
void round_stochastically_composed(const at::Tensor& values, const at::Tensor& to,
                                   const RoundedElements& elements);

}  // namespace fsdp::kernels
