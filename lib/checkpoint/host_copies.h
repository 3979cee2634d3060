#pragma once

// What a rank holds, copied into buffers of its own, so that training can go on while it is written.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shard/tensor_slice.h"

namespace fsdp::checkpoint {

bool in_host_memory(const std::vector<shard::TensorSlice>& slices);

/// One buffer in host memory as large as the slices together, made once and used for every save.
class HostCopies {
 public:
  /// Makes the buffer for slices like these and touches its memory, so that no save has to. take() does it by
  /// itself when the slices are others than before.
  void prepare(const std::vector<shard::TensorSlice>& slices);

  /// Copies the slices' data, from whatever device it is on. What is returned lies in the buffer: it stays as
  /// it is until the next call.
  const std::vector<shard::TensorSlice>& take(const std::vector<shard::TensorSlice>& slices);

  /// Copies the buffer to the slices that were taken.
  void write_back(const std::vector<shard::TensorSlice>& slices) const;

  int64_t bytes() const { return buffer_.defined() ? buffer_.numel() : 0; }

 private:
  bool fits(const std::vector<shard::TensorSlice>& slices) const;

  at::Tensor buffer_;  ///< uint8
  std::vector<shard::TensorSlice> copies_;
};

}  // namespace fsdp::checkpoint
