#include "comm/api/memory_operations.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Half.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/util/error.h"
#include "base/util/past_cache.h"

namespace fsdp::comm {
namespace {

std::atomic<int64_t> read_bytes, written_bytes;

void count_moved(int64_t read, int64_t written) {
  read_bytes.fetch_add(read, std::memory_order_relaxed);
  written_bytes.fetch_add(written, std::memory_order_relaxed);
}

/// Number of halves that are widened together, into memory that stays in the L1 cache.
constexpr int64_t kBlock = 1024;

struct BFloat16Bits {
  uint16_t bits;
};
struct HalfBits {
  uint16_t bits;
};

#if defined(__x86_64__)
// The compiler does not vectorise the conversion of halves by itself.

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
#endif

void to_floats(const HalfBits* from, float* to, int64_t length) {
#if defined(__x86_64__)
  if (length == kBlock && has_f16c()) return to_floats_f16c(from, to);
#endif
  for (int64_t i = 0; i < length; ++i) to[i] = c10::detail::fp16_ieee_to_fp32_value(from[i].bits);
}

void to_halves(const float* from, HalfBits* to, int64_t length) {
#if defined(__x86_64__)
  if (length == kBlock && has_f16c()) return to_halves_f16c(from, to);
#endif
  for (int64_t i = 0; i < length; ++i) to[i].bits = c10::detail::fp16_ieee_from_fp32_value(from[i]);
}

// The following functions are inlined into one function per instruction set, for which the compiler lowers
// vectors of 64 bytes. Sums stay in registers while all parts are added: each byte is read and written once.
#define FSDP_INLINE [[gnu::always_inline]] inline

constexpr int64_t kVectorBytes = 64;

/// Vectors of the type in which elements of type T are added.
template <typename T>
struct Vectors {
  typedef T Wide __attribute__((vector_size(kVectorBytes)));
  static constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(T));

  FSDP_INLINE static void load(const T* from, Wide* to) { std::memcpy(to, from, sizeof(Wide)); }
  FSDP_INLINE static void store(const Wide& from, T* to) { std::memcpy(to, &from, sizeof(Wide)); }
};

template <>
struct Vectors<BFloat16Bits> {
  typedef float Wide __attribute__((vector_size(kVectorBytes)));
  typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  typedef uint16_t Narrow __attribute__((vector_size(kVectorBytes / 2)));
  static constexpr int64_t kLanes = 16;

  FSDP_INLINE static void load(const BFloat16Bits* from, Wide* to) {
    Narrow narrow;
    std::memcpy(&narrow, from, sizeof(narrow));
    const Bits bits = __builtin_convertvector(narrow, Bits) << 16;
    std::memcpy(to, &bits, sizeof(bits));
  }
  FSDP_INLINE static void store(const Wide& from, BFloat16Bits* to) {
    Bits bits;
    std::memcpy(&bits, &from, sizeof(bits));
    const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    const Bits result = (bits & 0x7fffffff) > 0x7f800000 ? (rounded & 0) + 0x7fc0 : rounded;
    const Narrow narrow = __builtin_convertvector(result, Narrow);
    std::memcpy(to, &narrow, sizeof(narrow));
  }
  FSDP_INLINE static void store(const Wide& from, float* to) { std::memcpy(to, &from, sizeof(Wide)); }
};

template <ReduceOp op, typename Wide>
FSDP_INLINE void combine(Wide* sum, const Wide& next) {
  if constexpr (op == ReduceOp::kSum) {
    *sum = *sum + next;
  } else {
    *sum = ((next > *sum) | (next != next)) ? next : *sum;  // NOLINT(misc-redundant-expression): a NaN stays
  }
}

/// `kCount` vectors from element `at` on.
template <typename T, ReduceOp op, int kCount, typename Out>
FSDP_INLINE void reduce_vectors(Out* out, const T* const* parts, size_t count, int64_t at) {
  using V = Vectors<T>;
  typename V::Wide sums[kCount], next;
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) V::load(parts[0] + at + i * V::kLanes, sums + i);
  for (size_t part = 1; part < count; ++part) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      V::load(parts[part] + at + i * V::kLanes, &next);
      combine<op>(sums + i, next);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) V::store(sums[i], out + at + i * V::kLanes);
}

template <typename T, ReduceOp op, typename Out>
FSDP_INLINE void reduce_all(Out* out, const T* const* parts, size_t count, int64_t numel) {
  constexpr int64_t kLanes = Vectors<T>::kLanes;
  int64_t done = 0;
  for (; done + 4 * kLanes <= numel; done += 4 * kLanes) {
    reduce_vectors<T, op, 4>(out, parts, count, done);
  }
  for (; done + kLanes <= numel; done += kLanes) {
    reduce_vectors<T, op, 1>(out, parts, count, done);
  }
  if (done == numel) return;
  // The rest, padded to one vector.
  T rest[kLanes]{};
  typename Vectors<T>::Wide sum, next;
  const size_t bytes = static_cast<size_t>(numel - done) * sizeof(T);
  std::memcpy(rest, parts[0] + done, bytes);
  Vectors<T>::load(rest, &sum);
  for (size_t part = 1; part < count; ++part) {
    std::memcpy(rest, parts[part] + done, bytes);
    Vectors<T>::load(rest, &next);
    combine<op>(&sum, next);
  }
  Out results[kLanes];
  Vectors<T>::store(sum, results);
  std::memcpy(out + done, results, static_cast<size_t>(numel - done) * sizeof(Out));
}

#if defined(__x86_64__)
#if defined(__clang__)  // whose target attribute has no preferred width
#define FSDP_AVX512 "avx512f,avx512bw,avx512vl,avx512dq"
#else
#define FSDP_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"
#endif

template <typename T, ReduceOp op, typename Out>
[[gnu::target(FSDP_AVX512)]] void reduce_avx512(Out* out, const T* const* parts, size_t count,
                                                int64_t numel) {
  reduce_all<T, op>(out, parts, count, numel);
}

template <typename T, ReduceOp op, typename Out>
[[gnu::target("avx2")]] void reduce_avx2(Out* out, const T* const* parts, size_t count, int64_t numel) {
  reduce_all<T, op>(out, parts, count, numel);
}
#endif

template <typename T, ReduceOp op, typename Out>
void reduce_baseline(Out* out, const T* const* parts, size_t count, int64_t numel) {
  reduce_all<T, op>(out, parts, count, numel);
}

template <typename T, ReduceOp op, typename Out = T>
auto chosen_reduce() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return &reduce_avx512<T, op, Out>;
  }
  if (__builtin_cpu_supports("avx2")) return &reduce_avx2<T, op, Out>;
#endif
  return &reduce_baseline<T, op, Out>;
}

/// Reduces in blocks that are widened to float and stay in the L1 cache.
template <ReduceOp op, typename Out>
void reduce_halves(Out* out, const HalfBits* const* parts, size_t count, int64_t numel) {
  static const auto combine_floats = chosen_reduce<float, op>();
  alignas(64) float sums[kBlock], next[kBlock];
  const float* both[] = {sums, next};
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    to_floats(parts[0] + begin, sums, length);
    for (size_t part = 1; part < count; ++part) {
      to_floats(parts[part] + begin, next, length);
      combine_floats(sums, both, 2, length);
    }
    if constexpr (std::is_same_v<Out, float>) {
      std::memcpy(out + begin, sums, static_cast<size_t>(length) * sizeof(float));
    } else {
      to_halves(sums, out + begin, length);
    }
  }
}

/// Sums in pairs, in blocks that stay in the L1 cache. Up to three parts are the same added in order.
void sum_in_pairs(float* out, const float* const* parts, size_t count, int64_t numel) {
  static const auto sum = chosen_reduce<float, ReduceOp::kSum>();
  if (count <= 3) return sum(out, parts, count, numel);
  const size_t half = std::bit_floor(count - 1);
  alignas(64) float right[kBlock], left[kBlock];
  std::vector<const float*> some(count);
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t length = std::min(kBlock, numel - begin);
    for (size_t part = 0; part < count; ++part) some[part] = parts[part] + begin;
    sum_in_pairs(left, some.data(), half, length);
    sum_in_pairs(right, some.data() + half, count - half, length);
    const float* both[] = {left, right};
    sum(out + begin, both, 2, length);
  }
}

template <typename T>
void reduce(void* out, const std::vector<const void*>& parts, int64_t numel, ReduceOp op) {
  static const auto sum = chosen_reduce<T, ReduceOp::kSum>();
  static const auto max = chosen_reduce<T, ReduceOp::kMax>();
  const auto* typed = reinterpret_cast<const T* const*>(parts.data());
  (op == ReduceOp::kSum ? sum : max)(static_cast<T*>(out), typed, parts.size(), numel);
}

void count_reduction(size_t parts, int64_t numel, at::ScalarType dtype, size_t element) {
  count_moved(static_cast<int64_t>(parts) * numel * static_cast<int64_t>(c10::elementSize(dtype)),
              numel * static_cast<int64_t>(element));
}

}  // namespace

MovedBytes moved_bytes() {
  return {.read = read_bytes.load(std::memory_order_relaxed),
          .written = written_bytes.load(std::memory_order_relaxed)};
}

at::Tensor scratch(at::Tensor& memory, int64_t numel, at::ScalarType dtype,
                   const std::function<at::Tensor(int64_t bytes)>& allocate) {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (!memory.defined() || memory.numel() < bytes) {
    memory.reset();  // frees the old one first
    memory = allocate ? allocate(bytes) : at::empty({bytes}, at::kByte);
  }
  return memory.narrow(0, 0, bytes).view(dtype);
}

void copy_memory(void* to, const void* from, int64_t bytes) {
  count_moved(bytes, bytes);
  if (util::is_written_past_cache(bytes)) {
    util::write_past_cache(to, from, bytes);
    return util::end_writes_past_cache();
  }
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

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

void sum_unrounded(float* out, const std::vector<const void*>& parts, int64_t numel, at::ScalarType dtype) {
  FSDP_CHECK(sums_in_float(dtype), "sums of ", c10::toString(dtype), " are not taken in float");
  count_reduction(parts.size(), numel, dtype, sizeof(float));
  if (dtype == at::kHalf) {
    const auto* halves = reinterpret_cast<const HalfBits* const*>(parts.data());
    return reduce_halves<ReduceOp::kSum>(out, halves, parts.size(), numel);
  }
  static const auto sum = chosen_reduce<BFloat16Bits, ReduceOp::kSum, float>();
  sum(out, reinterpret_cast<const BFloat16Bits* const*>(parts.data()), parts.size(), numel);
}

void sum_and_finish(float* out, const std::vector<const void*>& parts, int64_t numel,
                    const FinishSums& finish) {
  count_reduction(parts.size(), numel, at::kFloat, sizeof(float));
  const bool was_read = std::find(parts.begin(), parts.end(), out) != parts.end();
  const bool past_cache = !was_read && util::is_written_past_cache(numel * int64_t{sizeof(float)});
  alignas(64) float sums[kFinishedRun];
  std::vector<const float*> some(parts.size());
  for (int64_t begin = 0; begin < numel; begin += kFinishedRun) {
    const int64_t length = std::min(kFinishedRun, numel - begin);
    for (size_t part = 0; part < parts.size(); ++part)
      some[part] = static_cast<const float*>(parts[part]) + begin;
    sum_in_pairs(sums, some.data(), some.size(), length);
    finish(sums, length);
    const auto bytes = length * int64_t{sizeof(float)};
    if (past_cache) {
      util::write_past_cache(out + begin, sums, bytes);
    } else {
      std::memcpy(out + begin, sums, static_cast<size_t>(bytes));
    }
  }
  if (past_cache) util::end_writes_past_cache();
}

void finish_sums(const at::Tensor& sums, const FinishSums& finish) {
  FSDP_CHECK(sums.is_cpu() && sums.is_contiguous());
  float* data = sums.data_ptr<float>();
  for (int64_t begin = 0; begin < sums.numel(); begin += kFinishedRun) {
    finish(data + begin, std::min(kFinishedRun, sums.numel() - begin));
  }
}

void reduce_in_rank_order(void* out, const std::vector<const void*>& parts, int64_t numel,
                          at::ScalarType dtype, ReduceOp op) {
  count_reduction(parts.size(), numel, dtype, c10::elementSize(dtype));
  if (dtype == at::kFloat && op == ReduceOp::kSum) {
    return sum_in_pairs(static_cast<float*>(out), reinterpret_cast<const float* const*>(parts.data()),
                        parts.size(), numel);
  }
  if (dtype == at::kBFloat16) return reduce<BFloat16Bits>(out, parts, numel, op);
  if (dtype == at::kBool) return reduce<uint8_t>(out, parts, numel, ReduceOp::kMax);
  if (dtype == at::kHalf) {
    const auto* halves = reinterpret_cast<const HalfBits* const*>(parts.data());
    const auto chosen = op == ReduceOp::kSum ? &reduce_halves<ReduceOp::kSum, HalfBits>
                                             : &reduce_halves<ReduceOp::kMax, HalfBits>;
    return chosen(static_cast<HalfBits*>(out), halves, parts.size(), numel);
  }
  AT_DISPATCH_ALL_TYPES(dtype, "reduction", [&] { reduce<scalar_t>(out, parts, numel, op); });
}

}  // namespace fsdp::comm
