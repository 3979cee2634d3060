#pragma once

// All features of CUDA that the kernels of this folder use. nvcc compiles the functions to CUDA's own. For
// other compilers they use a MachineThread, which tests emulate (tests/support/cuda_emulator.h), so that
// kernels run without a GPU.
//
// A kernel is a struct with
//   Arguments  plain data, given to every thread
//   Shared     plain data, shared by the threads of a block, not initialised
//   kThreads   of a block, a multiple of 32
//   static void run(const Arguments&, Shared&)
// and is launched by an object with
//   template <typename Kernel> void run(const Grid&, const Kernel::Arguments&) const

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define FSDP_DEVICE __device__ __forceinline__
#define FSDP_PRAGMA(text) _Pragma(#text)
#define FSDP_UNROLL FSDP_PRAGMA(unroll)
#define FSDP_UNROLL_BY(times) FSDP_PRAGMA(unroll times)
#else
#include <cstring>
#include <source_location>
#include <stdexcept>
#include <string>
#define FSDP_DEVICE inline
#define FSDP_UNROLL
#define FSDP_UNROLL_BY(times)
#endif

namespace fsdp::kernels::cuda {

inline constexpr int kWarp = 32;

/// Number of blocks of a launch.
struct Grid {
  int64_t x = 1;  ///< 0: nothing is launched
  int64_t y = 1;
};

struct Nothing {};

#ifdef __CUDACC__

FSDP_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
FSDP_DEVICE int64_t block() { return static_cast<int64_t>(blockIdx.x); }
FSDP_DEVICE int64_t block_y() { return static_cast<int64_t>(blockIdx.y); }
FSDP_DEVICE int64_t blocks() { return static_cast<int64_t>(gridDim.x); }

/// Waits for all threads of the block.
FSDP_DEVICE void sync_block() { __syncthreads(); }

/// Returns the value of the lane whose number differs by `mask`. Must be called by all lanes of a warp.
template <typename T>
FSDP_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffU, value, mask);
}

/// Returns lane i's value as bit i. Must be called by all lanes of a warp.
FSDP_DEVICE uint32_t ballot(bool value) { return __ballot_sync(0xffffffffU, value); }

/// Returns the index of the lowest bit that is set; -1 if there is none.
FSDP_DEVICE int lowest_bit(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }

FSDP_DEVICE float not_a_number() { return __int_as_float(0x7fffffff); }

/// Returns 2^x within two units in the last place. Like the next function it returns 0 for what is below
/// 2^-126: the machine code of __expf() and __fdividef(), which do not, is three times as long.
FSDP_DEVICE float fast_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
/// Returns 1 / x within one unit in the last place, without the call that a division makes for odd numbers.
FSDP_DEVICE float fast_reciprocal(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

/// Stores kBytes from registers to global memory, which is aligned to kBytes, by one instruction. (The
/// assignment of a struct, even of a uint4, may become a store for each of its members.)
template <int kBytes>
FSDP_DEVICE void store_at_once(void* to, const void* from) {
  const auto address = __cvta_generic_to_global(to);
  if constexpr (kBytes == 16) {
    uint4 bits;
    memcpy(&bits, from, kBytes);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(bits.x), "r"(bits.y),
                 "r"(bits.z), "r"(bits.w)
                 : "memory");
  } else if constexpr (kBytes == 8) {
    uint2 bits;
    memcpy(&bits, from, kBytes);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(bits.x), "r"(bits.y) : "memory");
  } else {
    memcpy(to, from, kBytes);
  }
}

/// Makes the compiler forget what it knows of a value, so that it computes again what it would otherwise keep
/// in registers.
FSDP_DEVICE void forget(uint32_t& value) { asm volatile("" : "+r"(value)); }

/// Rounds to the nearest 8-bit numbers, `first` in the low byte; saturates. Requires: has_float8_rounding().
template <bool kE5m2>
FSDP_DEVICE uint16_t rounded_to_float8(float first, float second) {
  uint16_t bits = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  if constexpr (kE5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(second), "f"(first));
  }
#endif
  return bits;
}

FSDP_DEVICE constexpr bool has_float8_rounding() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  return false;
#else
  return true;
#endif
}

/// Fails a kernel: throws in emulated kernels.
FSDP_DEVICE void require(bool) {}

#else

/// The running thread of an emulator.
class MachineThread {
 public:
  virtual ~MachineThread() = default;
  virtual void sync_block(const std::source_location& where) = 0;
  /// Waits for the other lanes of the warp; returns the lanes' values, [32].
  virtual const uint64_t* exchange(uint64_t value, const std::source_location& where) = 0;
  int thread = 0;
  int64_t block = 0, block_y = 0, blocks = 1;
};
inline thread_local MachineThread* machine_thread = nullptr;

inline int thread() { return machine_thread->thread; }
inline int64_t block() { return machine_thread->block; }
inline int64_t block_y() { return machine_thread->block_y; }
inline int64_t blocks() { return machine_thread->blocks; }

inline void sync_block(const std::source_location& where = std::source_location::current()) {
  machine_thread->sync_block(where);
}

template <typename T>
T shuffle_xor(T value, int mask, const std::source_location& where = std::source_location::current()) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = machine_thread->exchange(bits, where)[(machine_thread->thread % kWarp) ^ mask];
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline uint32_t ballot(bool says, const std::source_location& where = std::source_location::current()) {
  const uint64_t* all = machine_thread->exchange(says ? 1 : 0, where);
  uint32_t bits = 0;
  for (int lane = 0; lane < kWarp; ++lane) bits |= static_cast<uint32_t>(all[lane]) << lane;
  return bits;
}

inline int lowest_bit(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)) - 1; }

inline float not_a_number() { return __builtin_nanf(""); }

/// Replaces numbers that the hardware's fast functions do not return by 0.
inline float without_subnormal(float x) { return std::fabs(x) < 0x1p-126F ? x * 0 : x; }
inline float fast_exp2(float x) { return without_subnormal(std::exp2(x)); }
inline float fast_reciprocal(float x) { return without_subnormal(1 / x); }

inline void forget(uint32_t&) {}

template <bool kE5m2>
uint16_t rounded_to_float8(float, float) {
  return 0;
}
constexpr bool has_float8_rounding() { return false; }

template <int kBytes>
void store_at_once(void* to, const void* from) {
  std::memcpy(to, from, kBytes);
}

inline void require(bool holds, const std::source_location& where = std::source_location::current()) {
  if (!holds) throw std::logic_error("line " + std::to_string(where.line()) + " of a kernel");
}

#endif

FSDP_DEVICE int lane() { return thread() % kWarp; }
FSDP_DEVICE int warp() { return thread() / kWarp; }

/// Arguments of a kernel whose blocks each process the rows of a part (model/kernels/kernel_table.h).
template <typename Rows>
struct RowsInParts {
  Rows rows;
  int64_t each;  ///< rows of a part

  FSDP_DEVICE int64_t begin() const { return block() * each; }
  FSDP_DEVICE int64_t end() const { return begin() + each < rows.rows ? begin() + each : rows.rows; }
};

}  // namespace fsdp::kernels::cuda
