#pragma once

// Values of quantised tensors in f32, bit by bit those of llama.cpp and of gguf-py's gguf.quants. (A NaN may
// have other bits; only a block whose scale is infinite or a NaN has any.)

#include <cstdint>

#include "base/gguf/format.h"
#include "base/gguf/reader.h"

namespace fsdp::gguf {

/// Computes the values of `count` elements, which are whole blocks of a quantised type.
void dequantise(TensorType type, const uint8_t* blocks, int64_t count, float* out);

/// Reads elements [begin, end) of a flattened quantised tensor, in pieces of a few KiB.
void read_dequantised(const Reader& file, const Tensor& tensor, int64_t begin, int64_t end, float* out);

}  // namespace fsdp::gguf
