#pragma once

// Numbers in 8 or 4 bits, for collectives over slow links (Wang et al.: ZeRO++, 2023, section 3). A number is
// an integer from -127 to 127, or from -7 to 7, times the scale of its block of 256. A part is the scales of
// its blocks, bfloat16, and then the codes: int8, or pairs of 4 bits with the first number in the low bits
// and 8 added to each. comm/options/link_type.h counts the bytes.
//
// A scale is the largest magnitude of the block over 127 or 7, rounded up, so that no number is cut off. It
// is bfloat16 and not float16, which takes as many bytes, because gradients of means are smaller than the
// least float16: their scales would be 0. A number that is not finite makes its block NaN. Blocks with
// magnitudes below 2^-100 become 0.
//
// The CPU and tensor operations on any device give the same bits. Thread-safe for different tensors.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "comm/options/link_type.h"

namespace fsdp::comm {

/// How numbers become integers: the nearest, by default.
struct CodeRounding {
  /// Rounds stochastically: up or down with the probabilities that make the result right in the mean. The
  /// random numbers depend on this seed and on all bits of the block, so they are new in each step, and a run
  /// that resumes repeats them without any state.
  std::optional<uint32_t> seed = std::nullopt;
  /// Error feedback, [n] fp32 on the device of the values; may be undefined. Added to the values before they
  /// are encoded, and replaced by what the code then lacks. 0 for blocks that are not finite.
  at::Tensor error = {};
  /// Number of the first block: of a piece of a part, the number within the part, so that the code does not
  /// depend on the pieces.
  int64_t first_block = 0;
};

/// Encodes values [n], contiguous and of a floating-point type, as bytes [link_bytes(n)], uint8.
void encode(LinkType type, const at::Tensor& values, const at::Tensor& bytes,
            const CodeRounding& rounding = {});

/// Decodes to values [n], contiguous and of a floating-point type.
void decode(LinkType type, const at::Tensor& bytes, const at::Tensor& values);

/// Adds what decode() would give to sums [n], contiguous, fp32.
void decode_and_add(LinkType type, const at::Tensor& bytes, const at::Tensor& sums);

/// The same by tensor operations, on any device.
void encode_composed(LinkType type, const at::Tensor& values, const at::Tensor& bytes,
                     const CodeRounding& rounding = {});
at::Tensor decoded_composed(LinkType type, const at::Tensor& bytes, int64_t numel);

}  // namespace fsdp::comm
