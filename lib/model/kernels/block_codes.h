#pragma once

// Numbers in 8 bits, for averages that an optimizer keeps (Dettmers et al.: 8-bit optimizers via block-wise
// quantization, 2022, sections 2 and 3). The elements of a tensor form blocks of 256. A number is a value of
// the dynamic code times the block's scale, its largest magnitude: 8.13 bits an element.
//
//   signed    a sign, and one of 127 magnitudes or 0: 64 from 0.1 to 1, 32 from 0.01 to 0.1, ...
//   unsigned  one of 255 magnitudes or 0, for numbers that are not negative: 128 from 0.1 to 1, ...
//
// The values are those of bitsandbytes' code, but for the largest, which is 1 here for either sign (there 1
// and -0.993): numbers that were decoded are encoded to the same bits. Numbers become the nearest value, but
// an unsigned number becomes 0 only if it is 0.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/util/rectangle.h"
#include "model/kernels/rows.h"

namespace fsdp::kernels {

/// Numbers in 8 bits, all on one device.
struct BlockCodes {
  at::Tensor codes;   ///< [n] uint8, contiguous
  at::Tensor scales;  ///< [coded_blocks(phase, n)] fp32, contiguous
  int64_t phase = 0;  ///< place of the first number in its block, from 0 to 255
  bool is_signed = true;

  int64_t numel() const { return codes.numel(); }
  bool is_defined() const { return codes.defined(); }
};

/// Returns the phase of a part of a tensor that has so many columns in the part's view. Blocks are those of
/// the whole tensor, row by row, so that other cuts share them; but a part of several rows, without all of
/// their columns, has blocks of its own.
int64_t phase_of(const util::Rectangle& part, int64_t columns);

/// Returns the number of blocks of n numbers.
int64_t coded_blocks(int64_t phase, int64_t n);

/// Returns a view of numbers [begin, begin + count).
BlockCodes narrow(const BlockCodes& all, int64_t begin, int64_t count);

/// Encodes values, [n] fp32, contiguous. A value that is not finite makes its block not finite. Largest
/// magnitudes below 2^-100 count as 0. Requires: `to` shares no block with other numbers.
void encode(const at::Tensor& values, const BlockCodes& to);

/// Decodes to `to`, [n] fp32, contiguous.
void decode(const BlockCodes& codes, const at::Tensor& to);
at::Tensor decoded(const BlockCodes& codes);

/// These do the same by tensor operations, on any device.
void encode_composed(const at::Tensor& values, const BlockCodes& to);
at::Tensor decoded_composed(const BlockCodes& codes);

}  // namespace fsdp::kernels
