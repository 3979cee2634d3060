#include "comm/rank_order_sum.h"

#include <c10/util/Half.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "util/error.h"

namespace fsdp::comm {
namespace {

/// Elements that are worked on together: their sums stay in the first-level cache while all parts are added.
constexpr int64_t kBlock = 1024;

struct BFloat16Bits {
  uint16_t bits;
};
struct HalfBits {
  uint16_t bits;
};

// Halves are converted by instructions of their own, which the compiler does not find by itself.

[[gnu::target("avx2,f16c")]] void to_floats_f16c(const HalfBits* from, float* to) {
  for (int64_t i = 0; i < kBlock; i += 8) {
    __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
}

[[gnu::target("avx2,f16c")]] void to_halves_f16c(const float* from, HalfBits* to) {
  for (int64_t i = 0; i < kBlock; i += 8) {
    __m128i halves =
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
}

bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

// What follows is inlined into a function for each instruction set, and the compiler vectorises it there.
#define FSDP_INLINE [[gnu::always_inline]] inline

template <typename T>
FSDP_INLINE T widened(T value) {
  return value;
}
FSDP_INLINE float widened(BFloat16Bits value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
FSDP_INLINE float widened(HalfBits value) { return c10::detail::fp16_ieee_to_fp32_value(value.bits); }

template <typename T>
FSDP_INLINE void narrow(T value, T* to) {
  *to = value;
}
FSDP_INLINE void narrow(float value, BFloat16Bits* to) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  to->bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}
FSDP_INLINE void narrow(float value, HalfBits* to) {
  to->bits = c10::detail::fp16_ieee_from_fp32_value(value);
}

template <typename T>
using Wide = decltype(widened(T{}));

template <ReduceOp op, typename W>
FSDP_INLINE W combined(W sum, W next) {
  if constexpr (op == ReduceOp::kSum) {
    return static_cast<W>(sum + next);
  } else if constexpr (std::is_integral_v<W>) {
    return next > sum ? next : sum;
  } else {
    return (next > sum) | (next != next) ? next : sum;  // a NaN in `sum` stays: it compares as false
  }
}

template <typename T>
FSDP_INLINE void widen_block(const T* from, Wide<T>* to, int64_t length) {
  for (int64_t i = 0; i < length; ++i) to[i] = widened(from[i]);
}

template <typename T>
FSDP_INLINE void narrow_block(const Wide<T>* from, T* to, int64_t length) {
  for (int64_t i = 0; i < length; ++i) narrow(from[i], to + i);
}

template <typename T, ReduceOp op>
FSDP_INLINE void reduce_block(T* out, const T* const* parts, size_t count, int64_t begin, int64_t length) {
  using W = Wide<T>;
  alignas(64) W sums[kBlock];
  if constexpr (std::is_same_v<T, HalfBits>) {
    alignas(64) W next[kBlock];
    const bool fast = length == kBlock && has_f16c();
    for (size_t part = 0; part < count; ++part) {
      W* into = part == 0 ? sums : next;
      fast ? to_floats_f16c(parts[part] + begin, into) : widen_block(parts[part] + begin, into, length);
      if (part == 0) continue;
      for (int64_t i = 0; i < length; ++i) sums[i] = combined<op>(sums[i], next[i]);
    }
    fast ? to_halves_f16c(sums, out + begin) : narrow_block(sums, out + begin, length);
  } else {
    widen_block(parts[0] + begin, sums, length);
    for (size_t part = 1; part < count; ++part) {
      const T* next = parts[part] + begin;
      for (int64_t i = 0; i < length; ++i) sums[i] = combined<op>(sums[i], widened(next[i]));
    }
    narrow_block(sums, out + begin, length);
  }
}

template <typename T, ReduceOp op>
FSDP_INLINE void reduce_all(T* out, const T* const* parts, size_t count, int64_t numel) {
  int64_t begin = 0;
  for (; begin + kBlock <= numel; begin += kBlock) reduce_block<T, op>(out, parts, count, begin, kBlock);
  if (begin < numel) reduce_block<T, op>(out, parts, count, begin, numel - begin);
}

template <typename T, ReduceOp op>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void reduce_avx512(
    T* out, const T* const* parts, size_t count, int64_t numel) {
  reduce_all<T, op>(out, parts, count, numel);
}

template <typename T, ReduceOp op>
[[gnu::target("avx2")]] void reduce_avx2(T* out, const T* const* parts, size_t count, int64_t numel) {
  reduce_all<T, op>(out, parts, count, numel);
}

template <typename T, ReduceOp op>
void reduce_baseline(T* out, const T* const* parts, size_t count, int64_t numel) {
  reduce_all<T, op>(out, parts, count, numel);
}

template <typename T, ReduceOp op>
auto chosen_reduce() {
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return &reduce_avx512<T, op>;
  }
  return __builtin_cpu_supports("avx2") ? &reduce_avx2<T, op> : &reduce_baseline<T, op>;
}

template <typename T>
void reduce(void* out, const std::vector<const void*>& parts, int64_t numel, ReduceOp op) {
  static const auto sum = chosen_reduce<T, ReduceOp::kSum>();
  static const auto max = chosen_reduce<T, ReduceOp::kMax>();
  const auto* typed = reinterpret_cast<const T* const*>(parts.data());
  (op == ReduceOp::kSum ? sum : max)(static_cast<T*>(out), typed, parts.size(), numel);
}

}  // namespace

bool sums_in_float(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

void sum_in_rank_order(const at::Tensor& out, const std::vector<at::Tensor>& parts) {
  FSDP_CHECK(!parts.empty() && out.is_contiguous());
  std::vector<const void*> pointers;
  for (const at::Tensor& part : parts) {
    FSDP_CHECK(part.is_contiguous() && part.numel() == out.numel() &&
               part.scalar_type() == out.scalar_type());
    pointers.push_back(part.data_ptr());
  }
  reduce_in_rank_order(out.data_ptr(), pointers, out.numel(), out.scalar_type(), ReduceOp::kSum);
}

void reduce_in_rank_order(void* out, const std::vector<const void*>& parts, int64_t numel,
                          at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
      return reduce<float>(out, parts, numel, op);
    case at::kBFloat16:
      return reduce<BFloat16Bits>(out, parts, numel, op);
    case at::kHalf:
      return reduce<HalfBits>(out, parts, numel, op);
    case at::kDouble:
      return reduce<double>(out, parts, numel, op);
    case at::kLong:
      return reduce<int64_t>(out, parts, numel, op);
    case at::kInt:
      return reduce<int32_t>(out, parts, numel, op);
    case at::kShort:
      return reduce<int16_t>(out, parts, numel, op);
    case at::kChar:
      return reduce<int8_t>(out, parts, numel, op);
    case at::kByte:
      return reduce<uint8_t>(out, parts, numel, op);
    case at::kBool:
      return reduce<uint8_t>(out, parts, numel, ReduceOp::kMax);
    default:
      FSDP_CHECK(false, "no reduction of ", c10::toString(dtype));
  }
}

}  // namespace fsdp::comm
