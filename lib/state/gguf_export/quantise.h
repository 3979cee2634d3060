#pragma once

// Elements as the bytes of a GGUF type. The quantised types have blocks of 32 elements: a scale in float16
// and 8 or 4 bits an element. All bits are those of gguf-py's gguf.quants.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "base/gguf/format.h"

namespace fsdp::gguf {

inline constexpr int64_t kBlockElements = 32;

/// q8_0: the scale is the largest magnitude / 127; 34 bytes a block. `count` is a multiple of 32.
void quantise_q8_0(const float* values, int64_t count, uint8_t* out);

/// q4_0: the scale is the value of the largest magnitude / -8, so that it becomes 0 of 0 to 15; 18 bytes a
/// block, the lower halves of its bytes being the first 16 elements.
void quantise_q4_0(const float* values, int64_t count, uint8_t* out);

/// The bytes of elements of a floating-point type: a contiguous 1-D tensor on the CPU. kCheckpoint that names
/// `where` for values that the type cannot hold: those beyond 65504 in f16, which `saturate` makes 65504, and
/// in quantised types those that are not finite or whose block would have a scale beyond 65504.
at::Tensor encoded(const at::Tensor& elements, TensorType type, const std::string& where,
                   bool saturate = false);

}  // namespace fsdp::gguf
