#pragma once

// TensorMemory counts the memory of CPU tensors: what is alive now, and the most that ever was.
//
//   util::TensorMemory memory;           // from here on every allocation of a CPU tensor is counted
//   train();
//   memory.peak_bytes();
//
// It stands before libtorch's CPU allocator (c10::SetCPUAllocator), so it sees the tensors of all threads,
// what autograd saves and the temporaries of kernels among them, and not what kernels take from malloc
// themselves. Bytes are those asked for.
//
// Process-wide: at most one object at a time. Counting is thread-safe; make and destroy the object while no
// other thread allocates tensors. Tensors may outlive the object.

#include <cstdint>

namespace fsdp::util {

class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  /// Of tensors that were allocated since the object was made.
  int64_t live_bytes() const;
  /// The most that were alive at any time since then, or since reset_peak().
  int64_t peak_bytes() const;
  void reset_peak();
};

}  // namespace fsdp::util
