#pragma once

// The sums of NCCL's reductions, which are computed: what they return decides what a program does next.

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace standin {

struct Bfloat16 {
  uint16_t bits = 0;

  Bfloat16() = default;
  explicit Bfloat16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    const bool is_nan = value != value;
    bits = is_nan ? 0x7FC0 : static_cast<uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }
};

inline size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <typename T, typename Wide>
void combine(void* sum, const void* part, size_t count, ncclRedOp_t op) {
  auto* to = static_cast<T*>(sum);
  const auto* from = static_cast<const T*>(part);
  for (size_t i = 0; i < count; ++i) {
    const Wide a = static_cast<Wide>(to[i]), b = static_cast<Wide>(from[i]);
    const Wide result = op == ncclMax    ? std::max(a, b)
                        : op == ncclMin  ? std::min(a, b)
                        : op == ncclProd ? a * b
                                         : a + b;
    to[i] = static_cast<T>(result);
  }
}

/// sum[i] = op(sum[i], part[i]); ncclAvg as a sum. False for a type that is not known.
inline bool combine(void* sum, const void* part, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat64:
      combine<double, double>(sum, part, count, op);
      return true;
    case ncclFloat32:
      combine<float, float>(sum, part, count, op);
      return true;
    case ncclFloat16:
      combine<_Float16, float>(sum, part, count, op);
      return true;
    case ncclBfloat16:
      combine<Bfloat16, float>(sum, part, count, op);
      return true;
    case ncclInt64:
    case ncclUint64:
      combine<int64_t, int64_t>(sum, part, count, op);
      return true;
    case ncclInt32:
    case ncclUint32:
      combine<int32_t, int32_t>(sum, part, count, op);
      return true;
    case ncclUint8:
      combine<uint8_t, int>(sum, part, count, op);
      return true;
    default:
      return false;
  }
}

}  // namespace standin
