#pragma once

// The memory that kernels/attention.h works in, on a thread; on sizes alone, so that a plan can count it.

#include <algorithm>
#include <cstdint>

namespace fsdp::kernels {

struct AttentionSizes {
  int64_t tokens = 0, head_dim = 0;
  int64_t element = 4;  ///< bytes

  static constexpr int64_t kQueries = 64;        ///< of a tile
  static constexpr int64_t kKeys = 512;          ///< of a tile of forward
  static constexpr int64_t kKeysBackward = 128;  ///< of a tile of backward

  static constexpr int64_t even(int64_t n) { return (n + 1) / 2 * 2; }
  int64_t queries() const { return std::min(kQueries, even(tokens)); }
  int64_t keys() const { return std::min(kKeys, even(tokens)); }
  int64_t keys_backward() const { return std::min(kKeysBackward, even(tokens)); }
  /// [tokens, head_dim], packed.
  int64_t packed_bytes() const { return even(tokens) * head_dim * element; }

  int64_t forward_bytes() const {
    return 2 * packed_bytes() + queries() * keys() * (4 + element) + 4 * queries() * (head_dim + 2);
  }
  int64_t backward_bytes() const {
    return 5 * packed_bytes() + 4 * tokens * (3 * head_dim + 1) +
           queries() * keys_backward() * (2 * 4 + 3 * element);
  }
};

}  // namespace fsdp::kernels
