#include "comm/codes/link_codes.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/util/error.h"
#include "comm/codes/block_bits.h"

namespace fsdp::comm {
namespace {

// The functions below are inlined into one function per instruction set.
#define FSDP_INLINE [[gnu::always_inline]] inline

/// Memory of one part.
struct CodedPart {
  uint8_t* scales;
  uint8_t* codes;

  CodedPart(void* bytes, int64_t numel)
      : scales(static_cast<uint8_t*>(bytes)), codes(scales + 2 * ((numel + kCodeBlock - 1) / kCodeBlock)) {}
};

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

/// Rounds to the nearest integer, ties to even, for magnitudes below 2^22.
FSDP_INLINE float nearest(float value) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23
  return (value + kMagic) - kMagic;
}

/// Of integers, because GCC makes no vectors of a choice between floating-point results.
FSDP_INLINE float floor_of(float value) {
  const auto whole = static_cast<int32_t>(value);
  return static_cast<float>(whole - static_cast<int32_t>(static_cast<float>(whole) > value));
}

/// The factors of hash_of(), computed once.
struct HashFactors {
  uint32_t of[kCodeBlock];
  HashFactors() {
    for (int64_t i = 0; i < kCodeBlock; ++i) of[i] = hash_factor(static_cast<uint32_t>(i));
  }
};

/// Encodes a whole block. `error`: null, or [256].
template <bool kStochastic>
FSDP_INLINE uint16_t encode_block(const float* values, float levels, uint32_t seed, uint32_t block,
                                  const uint32_t* factors, int8_t* codes, float* error) {
  uint32_t bits[kCodeBlock];
  std::memcpy(bits, values, sizeof(bits));
  uint32_t magnitude = 0, hash = 0;
  for (int64_t i = 0; i < kCodeBlock; ++i) {
    const uint32_t own = bits[i] & 0x7fffffffU;
    magnitude = own > magnitude ? own : magnitude;
    if constexpr (kStochastic) hash += bits[i] * factors[i];
  }
  const uint32_t scale_bits = scale_of(magnitude, levels);
  if (scale_bits == 0 || scale_bits == kNanBits) {
    std::memset(codes, 0, kCodeBlock);
    const bool is_zero = scale_bits == 0;
    for (int64_t i = 0; error != nullptr && i < kCodeBlock; ++i) error[i] = is_zero ? values[i] : 0.0F;
    return static_cast<uint16_t>(scale_bits >> 16);
  }
  const float scale = float_of(scale_bits);
  const uint32_t key = block_key(seed, block, hash);
  for (int64_t i = 0; i < kCodeBlock; ++i) {
    float code = values[i] / scale;
    if constexpr (kStochastic) {
      const uint32_t random = mixed(key + static_cast<uint32_t>(i) * kGolden) >> 8;
      code = floor_of(code + static_cast<float>(static_cast<int32_t>(random)) * kUnit);
    } else {
      code = nearest(code);
    }
    code = code > levels ? levels : code;
    code = code < -levels ? -levels : code;
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(code));
  }
  if (error != nullptr) {
    for (int64_t i = 0; i < kCodeBlock; ++i) error[i] = values[i] - static_cast<float>(codes[i]) * scale;
  }
  return static_cast<uint16_t>(scale_bits >> 16);
}

// Two codes at once, as 16 bits with the first number in the low byte: GCC makes vectors of this, and not of
// every other byte.
static_assert(std::endian::native == std::endian::little);

FSDP_INLINE void pack(const int8_t* codes, uint8_t* to) {
  alignas(64) uint8_t raised[kCodeBlock];
  alignas(64) uint16_t pairs[kCodeBlock / 2];
  for (int64_t i = 0; i < kCodeBlock; ++i) raised[i] = static_cast<uint8_t>(codes[i] + 8);
  std::memcpy(pairs, raised, sizeof(pairs));
  for (int64_t i = 0; i < kCodeBlock / 2; ++i) to[i] = static_cast<uint8_t>(pairs[i] | (pairs[i] >> 4));
}

FSDP_INLINE void unpack(const uint8_t* packed, int8_t* codes) {
  alignas(64) uint16_t pairs[kCodeBlock / 2];
  for (int64_t i = 0; i < kCodeBlock / 2; ++i) {
    pairs[i] = static_cast<uint16_t>((packed[i] & 15) | ((packed[i] >> 4) << 8));
  }
  std::memcpy(codes, pairs, sizeof(pairs));
  for (int64_t i = 0; i < kCodeBlock; ++i) codes[i] = static_cast<int8_t>(codes[i] - 8);
}

template <typename T>
struct Encoding {
  LinkType type;
  const T* values;
  int64_t numel;
  CodedPart part;
  uint32_t seed;
  float* error;  ///< may be null
  int64_t first_block;
};

template <typename T, bool kStochastic>
FSDP_INLINE void encode_all(const Encoding<T>& given) {
  static const HashFactors factors;
  const float levels = levels_of(given.type);
  alignas(64) float values[kCodeBlock], error[kCodeBlock];
  alignas(64) int8_t codes[kCodeBlock];
  alignas(64) uint8_t packed[kCodeBlock / 2];
  for (int64_t begin = 0; begin < given.numel; begin += kCodeBlock) {
    const int64_t length = std::min(kCodeBlock, given.numel - begin);
    for (int64_t i = 0; i < length; ++i) values[i] = static_cast<float>(given.values[begin + i]);
    if (length < kCodeBlock) std::memset(values + length, 0, static_cast<size_t>(kCodeBlock - length) * 4);
    if (given.error != nullptr) {
      for (int64_t i = 0; i < length; ++i) values[i] += given.error[begin + i];
    }
    const int64_t block = begin / kCodeBlock;
    const uint16_t scale = encode_block<kStochastic>(
        values, levels, given.seed, static_cast<uint32_t>(given.first_block + block), factors.of, codes,
        given.error != nullptr ? error : nullptr);
    std::memcpy(given.part.scales + 2 * block, &scale, sizeof(scale));
    if (given.error != nullptr) {
      std::memcpy(given.error + begin, error, static_cast<size_t>(length) * sizeof(float));
    }
    if (given.type == LinkType::kInt8) {
      std::memcpy(given.part.codes + begin, codes, static_cast<size_t>(length));
    } else {
      pack(codes, packed);
      std::memcpy(given.part.codes + begin / 2, packed, static_cast<size_t>((length + 1) / 2));
    }
  }
}

template <typename T>
struct Decoding {
  LinkType type;
  CodedPart part;
  T* values;
  int64_t numel;
};

template <typename T, bool kAdds>
FSDP_INLINE void decode_all(const Decoding<T>& given) {
  alignas(64) int8_t codes[kCodeBlock];
  alignas(64) uint8_t packed[kCodeBlock / 2] = {};
  for (int64_t begin = 0; begin < given.numel; begin += kCodeBlock) {
    const int64_t length = std::min(kCodeBlock, given.numel - begin);
    uint16_t bits = 0;
    std::memcpy(&bits, given.part.scales + begin / kCodeBlock * 2, sizeof(bits));
    const float scale = float_of(static_cast<uint32_t>(bits) << 16);
    if (given.type == LinkType::kInt8) {
      std::memcpy(codes, given.part.codes + begin, static_cast<size_t>(length));
    } else {
      std::memcpy(packed, given.part.codes + begin / 2, static_cast<size_t>((length + 1) / 2));
      unpack(packed, codes);
    }
    T* const to = given.values + begin;
    for (int64_t i = 0; i < length; ++i) {
      const float value = static_cast<float>(codes[i]) * scale;  // exact
      if constexpr (kAdds) {
        to[i] += value;
      } else {
        to[i] = static_cast<T>(value);
      }
    }
  }
}

#if defined(__x86_64__)
template <typename T, bool kStochastic>
[[gnu::target("avx2")]] void encode_avx2(const Encoding<T>& given) {
  encode_all<T, kStochastic>(given);
}
template <typename T, bool kAdds>
[[gnu::target("avx2")]] void decode_avx2(const Decoding<T>& given) {
  decode_all<T, kAdds>(given);
}
#endif
template <typename T, bool kStochastic>
void encode_baseline(const Encoding<T>& given) {
  encode_all<T, kStochastic>(given);
}
template <typename T, bool kAdds>
void decode_baseline(const Decoding<T>& given) {
  decode_all<T, kAdds>(given);
}

bool has_avx2() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

template <typename T, bool kStochastic>
void run_encode(const Encoding<T>& given) {
#if defined(__x86_64__)
  if (has_avx2()) return encode_avx2<T, kStochastic>(given);
#endif
  encode_baseline<T, kStochastic>(given);
}

template <typename T, bool kAdds>
void run_decode(const Decoding<T>& given) {
#if defined(__x86_64__)
  if (has_avx2()) return decode_avx2<T, kAdds>(given);
#endif
  decode_baseline<T, kAdds>(given);
}

/// Calls body(T()) for the type of host tensors that are coded.
template <typename Body>
void with_type(at::ScalarType type, const Body& body) {
  if (type == at::kFloat) return body(float());
  if (type == at::kBFloat16) return body(c10::BFloat16());
  FSDP_CHECK(type == at::kHalf, c10::toString(type), " is not coded");
  body(c10::Half());
}

void check(LinkType type, const at::Tensor& values, const at::Tensor& bytes) {
  FSDP_CHECK(type != LinkType::kExact && values.is_contiguous() && bytes.is_contiguous() &&
                 bytes.scalar_type() == at::kByte && bytes.numel() == link_bytes(type, values.numel(), 4),
             bytes.numel(), " bytes for ", values.numel(), " numbers");
}

}  // namespace

void encode(LinkType type, const at::Tensor& values, const at::Tensor& bytes, const CodeRounding& rounding) {
  const at::NoGradGuard no_grad;
  check(type, values, bytes);
  FSDP_CHECK(!rounding.error.defined() || rounding.error.numel() == values.numel());
  if (!values.is_cpu()) return encode_composed(type, values, bytes, rounding);
  auto* const to = static_cast<uint8_t*>(bytes.data_ptr());
  if (values.numel() > 0) to[bytes.numel() - 1] = 0;  // the padding, if there is any
  with_type(values.scalar_type(), [&]<typename T>(T) {
    const Encoding<T> given{.type = type,
                            .values = values.const_data_ptr<T>(),
                            .numel = values.numel(),
                            .part = CodedPart(to, values.numel()),
                            .seed = rounding.seed.value_or(0),
                            .error = rounding.error.defined() ? rounding.error.data_ptr<float>() : nullptr,
                            .first_block = rounding.first_block};
    rounding.seed ? run_encode<T, true>(given) : run_encode<T, false>(given);
  });
}

void decode(LinkType type, const at::Tensor& bytes, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  check(type, values, bytes);
  if (!values.is_cpu()) {
    values.view({-1}).copy_(decoded_composed(type, bytes, values.numel()));
    return;
  }
  with_type(values.scalar_type(), [&]<typename T>(T) {
    run_decode<T, false>(
        {type, CodedPart(bytes.data_ptr(), values.numel()), values.data_ptr<T>(), values.numel()});
  });
}

void decode_and_add(LinkType type, const at::Tensor& bytes, const at::Tensor& sums) {
  const at::NoGradGuard no_grad;
  check(type, sums, bytes);
  FSDP_CHECK(sums.scalar_type() == at::kFloat);
  if (!sums.is_cpu()) {
    sums.view({-1}).add_(decoded_composed(type, bytes, sums.numel()));
    return;
  }
  run_decode<float, true>(
      {type, CodedPart(bytes.data_ptr(), sums.numel()), sums.data_ptr<float>(), sums.numel()});
}

}  // namespace fsdp::comm
