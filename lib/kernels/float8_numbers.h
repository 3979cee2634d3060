#pragma once

// What kernels/float8.h and its kernels for GPUs agree on.

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

namespace fsdp::kernels {

/// The largest number of an 8-bit type.
template <typename To>
inline constexpr float kLargestNumber = 448;
template <>
inline constexpr float kLargestNumber<c10::Float8_e5m2> = 57344;

/// Stands in for the largest magnitude of a tensor where that is smaller, so that the scale of zeros is
/// finite. As in torchao.
inline constexpr float kLeastMagnitude = 1e-12F;

}  // namespace fsdp::kernels
