#pragma once

// Packs of neighbouring elements, which are loaded and stored together.

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "model/kernels/cuda/thread_model.cuh"

namespace fsdp::kernels::cuda {

/// Bytes of the largest aligned load.
inline constexpr int kPackBytes = 16;
template <typename T>
inline constexpr int kPackOf = kPackBytes / static_cast<int>(sizeof(T));

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

template <typename T, int kCount>
FSDP_DEVICE bool is_aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(Pack<T, kCount>) == 0;
}

/// Loads a pack. Requires: `from` has the pack's alignment.
template <int kCount, typename T>
FSDP_DEVICE Pack<T, kCount> load_pack(const T* from) {
  require(is_aligned<T, kCount>(from));
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}

template <typename T, int kCount>
FSDP_DEVICE void store_pack(T* to, const Pack<T, kCount>& pack) {
  require(is_aligned<T, kCount>(to));
  if constexpr (kCount == 1) {
    *to = pack.at[0];
  } else {
    store_at_once<sizeof(pack)>(to, pack.at);
  }
}

/// A pack that stays in registers as it was loaded. (The elements of a Pack may get a register each.)
template <typename T, int kCount>
class HeldPack {
 public:
  FSDP_DEVICE void load(const T* from) {
    require(is_aligned<T, kCount>(from));
    words_ = *reinterpret_cast<const Words*>(from);
  }
  FSDP_DEVICE void hold(const Pack<T, kCount>& pack) { memcpy(&words_, pack.at, sizeof words_); }
  FSDP_DEVICE Pack<T, kCount> pack() const {
    Pack<T, kCount> pack;
    memcpy(pack.at, &words_, sizeof words_);
    return pack;
  }
  /// Ends the life of floats that the compiler has made of the elements.
  FSDP_DEVICE void stay_packed() {
    FSDP_UNROLL
    for (uint32_t& word : words_.at) forget(word);
  }

 private:
  using Words = Pack<uint32_t, static_cast<int>(sizeof(T)) * kCount / 4>;
  static_assert(sizeof(Words) == sizeof(Pack<T, kCount>));
  Words words_ = {};
};

/// Loads a pack at the end of a tensor, where only `count` of its elements exist. The rest is 0.
template <int kCount, typename T>
FSDP_DEVICE Pack<T, kCount> load_pack(const T* from, int64_t count) {
  if (count >= kCount) return load_pack<kCount>(from);
  Pack<T, kCount> pack;
  FSDP_UNROLL
  for (int i = 0; i < kCount; ++i) pack.at[i] = i < count ? from[i] : T(0.0F);
  return pack;
}

template <typename T, int kCount>
FSDP_DEVICE void store_pack(T* to, const Pack<T, kCount>& pack, int64_t count) {
  if (count >= kCount) return store_pack(to, pack);
  FSDP_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (i < count) to[i] = pack.at[i];
  }
}

/// Stores fp32 values to memory that is aligned to 16 bytes if there are 4 or more.
template <int kCount>
FSDP_DEVICE void store_floats(float* to, const float (&values)[kCount]) {
  constexpr int kAtOnce = kCount % 4 == 0 ? 4 : 1;
  FSDP_UNROLL
  for (int first = 0; first < kCount; first += kAtOnce) {
    Pack<float, kAtOnce> pack;
    FSDP_UNROLL
    for (int i = 0; i < kAtOnce; ++i) pack.at[i] = values[first + i];
    store_pack(to + first, pack);
  }
}

/// Loads values stored by store_floats().
template <int kCount>
FSDP_DEVICE void load_floats(const float* from, float (&values)[kCount]) {
  constexpr int kAtOnce = kCount % 4 == 0 ? 4 : 1;
  FSDP_UNROLL
  for (int first = 0; first < kCount; first += kAtOnce) {
    const auto pack = load_pack<kAtOnce>(from + first);
    FSDP_UNROLL
    for (int i = 0; i < kAtOnce; ++i) values[first + i] = pack.at[i];
  }
}

template <typename T>
FSDP_DEVICE float to_float(T value) {
  return static_cast<float>(value);
}

template <typename T, int kCount>
FSDP_DEVICE Pack<T, kCount> rounded(const float (&values)[kCount]) {
  Pack<T, kCount> pack;
  FSDP_UNROLL
  for (int i = 0; i < kCount; ++i) pack.at[i] = T(values[i]);
  return pack;
}

/// Returns the elements as floats. The compiler's own way takes two instructions for each second bf16.
template <typename T, int kCount>
FSDP_DEVICE Pack<float, kCount> floats_of(const Pack<T, kCount>& pack) {
  Pack<float, kCount> floats;
  if constexpr (std::is_same_v<T, c10::BFloat16> && kCount % 2 == 0) {
    uint32_t words[kCount / 2];
    memcpy(words, pack.at, sizeof words);
    FSDP_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      const uint32_t low = words[i / 2] << 16U, high = words[i / 2] & 0xffff0000U;
      memcpy(&floats.at[i], &low, sizeof low);
      memcpy(&floats.at[i + 1], &high, sizeof high);
    }
  } else {
    FSDP_UNROLL
    for (int i = 0; i < kCount; ++i) floats.at[i] = to_float(pack.at[i]);
  }
  return floats;
}

template <typename T, int kCount>
FSDP_DEVICE void add_pack(float (&values)[kCount], const Pack<T, kCount>& pack) {
  const auto floats = floats_of(pack);
  FSDP_UNROLL
  for (int i = 0; i < kCount; ++i) values[i] += floats.at[i];
}

/// Whether packs of 16 bytes fit the width and the alignment of rows at each pointer that is not null.
template <typename T, typename... Pointers>
bool fit_packs(int64_t width, const Pointers*... pointers) {
  return width % kPackOf<T> == 0 && ((reinterpret_cast<uintptr_t>(pointers) % kPackBytes == 0) && ...);
}

}  // namespace fsdp::kernels::cuda
