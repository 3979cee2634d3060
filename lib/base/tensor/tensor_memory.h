#pragma once

// TensorMemory counts the live bytes of CPU tensors and their peak.
//
//   util::TensorMemory memory;           // counts every later allocation of a CPU tensor
//   train();
//   memory.peak_bytes();
//
// It wraps libtorch's CPU allocator (c10::SetCPUAllocator), so it counts the tensors of all threads,
// including tensors saved by autograd and temporaries of kernels, but not memory that kernels allocate by
// malloc. Bytes are those requested.
//
// Process-wide: at most one object at a time. Counting is thread-safe; create and destroy the object while no
// other thread allocates tensors. Tensors may outlive the object.

#include <cstdint>

namespace fsdp::util {

class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  /// Bytes of live tensors that were allocated since the object was created.
  int64_t live_bytes() const;
  /// Peak of live_bytes() since the object was created, or since reset_peak().
  int64_t peak_bytes() const;
  void reset_peak();
};

}  // namespace fsdp::util
