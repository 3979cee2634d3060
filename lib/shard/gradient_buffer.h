#pragma once

// GradientBuffer: one flat tensor into which autograd accumulates the gradients of a unit's parameters, so
// that what is reduced over ranks is already in one piece.
//
// A kernel that finds the buffer at its weight (kernels/gradient_sink.h) writes there itself. Any other
// gradient is put there as soon as autograd has it, and dropped: one gradient at a time exists beside the
// buffer.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shard/buffer_pool.h"
#include "shard/named_parameter.h"
#include "shard/unit_layout.h"

namespace fsdp::shard {

class GradientBuffer {
 public:
  /// The parameters must have the type in which they are used, the same for all. The references must outlive
  /// the object.
  GradientBuffer(const std::vector<NamedParameter>& parameters, const UnitLayout& layout,
                 at::ScalarType dtype);
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  /// Gives autograd a buffer, [gathered_numel]; from the pool, or memory of its own if there is none.
  void attach(BufferPool* pool);
  bool is_attached() const { return flat_.defined(); }
  /// Takes it away again, with what was accumulated and zeros elsewhere; undefined when none is attached.
  at::Tensor detach();

  int64_t nbytes() const;

 private:
  class Sink;
  at::Tensor view_of(size_t parameter) const;
  void put(size_t parameter, const at::Tensor& gradient);

  const std::vector<NamedParameter>& parameters_;
  const UnitLayout& layout_;
  at::ScalarType dtype_;
  std::vector<bool> holds_;  ///< by parameter: a gradient; what it has no memory of is not initialised
  at::Tensor flat_;
};

}  // namespace fsdp::shard
