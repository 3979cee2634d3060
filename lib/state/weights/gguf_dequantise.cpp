// This file is compiled without contraction: an FMA in place of a product and a difference would round once
// instead of twice, and its bits would not be llama.cpp's.

#include "state/weights/gguf_dequantise.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/util/error.h"

namespace fsdp::gguf {

namespace {

constexpr int kMostElements = 256, kMostGroups = 16;

/// An unpacked block: element i is scales[i / group] * levels[i] - minima[i / group].
struct Block {
  int group = kMostElements;  ///< number of elements with one scale
  std::array<int8_t, kMostElements> levels{};
  std::array<float, kMostGroups> scales{}, minima{};
};

float half_at(const uint8_t* from) {
  c10::Half value;
  std::memcpy(&value, from, sizeof(value));
  return static_cast<float>(value);
}

/// Adds fields of `width` bits, shifted left by `shift`. Each run of `run` bytes has first the elements in
/// the lowest bits of all its bytes, then the elements in the next bits.
void add_fields(const uint8_t* from, int width, int run, int count, int shift, int8_t* levels) {
  const int mask = (1 << width) - 1;
  for (int8_t* const end = levels + count; levels != end; from += run) {
    for (int bit = 0; bit < 8; bit += width) {
      for (int i = 0; i < run; ++i) *levels++ += static_cast<int8_t>((from[i] >> bit & mask) << shift);
    }
  }
}

void subtract(int offset, int count, int8_t* levels) {
  for (int i = 0; i < count; ++i) levels[i] = static_cast<int8_t>(levels[i] - offset);
}

/// Replaces the levels of iq4_nl and iq4_xs by the whole numbers that they index.
void look_up(int count, int8_t* levels) {
  constexpr int8_t kNonLinear[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  for (int i = 0; i < count; ++i) levels[i] = kNonLinear[levels[i]];
}

/// Blocks of 32: [scale, minimum if there is one, fifth bits if there are any, four bits].
void unpack_32(const uint8_t* from, bool has_minimum, bool has_fifth_bits, Block& block) {
  block.scales[0] = half_at(from);
  from += 2;
  if (has_minimum) {
    block.minima[0] = -half_at(from);
    from += 2;
  }
  if (has_fifth_bits) {
    add_fields(from, 1, 1, 32, 4, block.levels.data());
    from += 4;
  }
  add_fields(from, 4, 16, 32, 0, block.levels.data());
}

void unpack_q4_0(const uint8_t* from, Block& block) {
  unpack_32(from, false, false, block);
  subtract(8, 32, block.levels.data());
}

void unpack_q4_1(const uint8_t* from, Block& block) { unpack_32(from, true, false, block); }

void unpack_q5_0(const uint8_t* from, Block& block) {
  unpack_32(from, false, true, block);
  subtract(16, 32, block.levels.data());
}

void unpack_q5_1(const uint8_t* from, Block& block) { unpack_32(from, true, true, block); }

void unpack_iq4_nl(const uint8_t* from, Block& block) {
  unpack_32(from, false, false, block);
  look_up(32, block.levels.data());
}

void unpack_q8_0(const uint8_t* from, Block& block) {
  block.scales[0] = half_at(from);
  std::memcpy(block.levels.data(), from + 2, 32);
}

/// Scales and minima of 4 bits each, levels of 2 bits.
void unpack_q2_k(const uint8_t* from, Block& block) {
  const float scale = half_at(from + 80), minimum = half_at(from + 82);
  block.group = 16;
  for (size_t i = 0; i < 16; ++i) {
    block.scales[i] = scale * static_cast<float>(from[i] & 15);
    block.minima[i] = minimum * static_cast<float>(from[i] >> 4);
  }
  add_fields(from + 16, 2, 32, 256, 0, block.levels.data());
}

/// Third bits of the levels, two bits of the levels, scales of 4 and 2 bits.
void unpack_q3_k(const uint8_t* from, Block& block) {
  const float scale = half_at(from + 108);
  int8_t scales[16] = {};
  add_fields(from + 96, 4, 8, 16, 0, scales);
  add_fields(from + 104, 2, 4, 16, 4, scales);
  block.group = 16;
  for (size_t i = 0; i < 16; ++i) block.scales[i] = scale * static_cast<float>(scales[i] - 32);
  add_fields(from + 32, 2, 32, 256, 0, block.levels.data());
  add_fields(from, 1, 32, 256, 2, block.levels.data());
  subtract(4, 256, block.levels.data());
}

/// Head of q4_K and q5_K: eight scales and eight minima of 6 bits. The first four of each have the lower bits
/// of a byte. The upper bits of that byte belong to the last four, whose other bits are in bytes 12 to 15.
void unpack_scales_of_k(const uint8_t* from, Block& block) {
  const float scale = half_at(from), minimum = half_at(from + 2);
  const uint8_t *scales = from + 4, *minima = from + 8, *lower = from + 12;
  block.group = 32;
  for (size_t i = 0; i < 4; ++i) {
    block.scales[i] = scale * static_cast<float>(scales[i] & 63);
    block.minima[i] = minimum * static_cast<float>(minima[i] & 63);
    block.scales[i + 4] = scale * static_cast<float>((lower[i] & 15) | (scales[i] >> 6) << 4);
    block.minima[i + 4] = minimum * static_cast<float>(lower[i] >> 4 | (minima[i] >> 6) << 4);
  }
}

void unpack_q4_k(const uint8_t* from, Block& block) {
  unpack_scales_of_k(from, block);
  add_fields(from + 16, 4, 32, 256, 0, block.levels.data());
}

void unpack_q5_k(const uint8_t* from, Block& block) {
  unpack_scales_of_k(from, block);
  add_fields(from + 48, 4, 32, 256, 0, block.levels.data());
  add_fields(from + 16, 1, 32, 256, 4, block.levels.data());
}

/// Four bits of the levels, two upper bits of the levels, scales of 8 bits.
void unpack_q6_k(const uint8_t* from, Block& block) {
  const float scale = half_at(from + 208);
  block.group = 16;
  for (size_t i = 0; i < 16; ++i) {
    block.scales[i] = scale * static_cast<float>(static_cast<int8_t>(from[192 + i]));
  }
  add_fields(from, 4, 64, 256, 0, block.levels.data());
  add_fields(from + 128, 2, 32, 256, 4, block.levels.data());
  subtract(32, 256, block.levels.data());
}

/// Two upper bits of the scales, four lower bits of the scales, levels of 4 bits.
void unpack_iq4_xs(const uint8_t* from, Block& block) {
  const float scale = half_at(from);
  int8_t scales[8] = {};
  add_fields(from + 4, 4, 1, 8, 0, scales);
  add_fields(from + 2, 2, 1, 8, 4, scales);
  block.group = 32;
  for (size_t i = 0; i < 8; ++i) block.scales[i] = scale * static_cast<float>(scales[i] - 32);
  add_fields(from + 8, 4, 16, 256, 0, block.levels.data());
  look_up(256, block.levels.data());
}

auto unpack_of(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
      return unpack_q4_0;
    case TensorType::kQ4_1:
      return unpack_q4_1;
    case TensorType::kQ5_0:
      return unpack_q5_0;
    case TensorType::kQ5_1:
      return unpack_q5_1;
    case TensorType::kQ8_0:
      return unpack_q8_0;
    case TensorType::kQ2_K:
      return unpack_q2_k;
    case TensorType::kQ3_K:
      return unpack_q3_k;
    case TensorType::kQ4_K:
      return unpack_q4_k;
    case TensorType::kQ5_K:
      return unpack_q5_k;
    case TensorType::kQ6_K:
      return unpack_q6_k;
    case TensorType::kIq4Nl:
      return unpack_iq4_nl;
    case TensorType::kIq4Xs:
      return unpack_iq4_xs;
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      break;
  }
  fail(ErrorKind::kUnexpected, util::name_of(type), " is not a quantised type");
}

}  // namespace

void dequantise(TensorType type, const uint8_t* blocks, int64_t count, float* out) {
  const auto unpack = unpack_of(type);
  const TypeTraits& traits = traits_of(type);
  FSDP_CHECK(count % traits.block_elements == 0, count);
  for (const float* const end = out + count; out != end; blocks += traits.block_bytes) {
    Block block;
    unpack(blocks, block);
    const int8_t* level = block.levels.data();
    for (const int8_t* const last = level + traits.block_elements; level != last;) {
      const auto group = static_cast<size_t>((level - block.levels.data()) / block.group);
      const float scale = block.scales[group], minimum = block.minima[group];
      const auto elements = std::min<int64_t>(block.group, last - level);
      for (int64_t i = 0; i < elements; ++i) *out++ = scale * static_cast<float>(*level++) - minimum;
    }
  }
}

void read_dequantised(const Reader& file, const Tensor& tensor, int64_t begin, int64_t end, float* out) {
  constexpr int64_t kPieceElements = 8192;  // whole blocks of every type
  const TypeTraits& traits = traits_of(tensor.type);
  std::vector<uint8_t> bytes(
      static_cast<size_t>(kPieceElements / traits.block_elements * traits.block_bytes));
  std::vector<float> values(kPieceElements);
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / traits.block_elements, first = block * traits.block_elements;
    const int64_t blocks =
        std::min(kPieceElements, end - first + traits.block_elements - 1) / traits.block_elements;
    file.read(tensor, block * traits.block_bytes, blocks * traits.block_bytes, bytes.data());
    dequantise(tensor.type, bytes.data(), blocks * traits.block_elements, values.data());
    const int64_t last = std::min(end, first + blocks * traits.block_elements);
    out = std::copy(values.data() + (at - first), values.data() + (last - first), out);
    at = last;
  }
}

}  // namespace fsdp::gguf
