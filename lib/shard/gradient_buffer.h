#pragma once

// GradientBuffer: one flat tensor into which autograd accumulates the gradients of a unit's parameters, so
// that what is reduced over ranks is already in one piece.
//
// When gradients are accumulated in the parameters' own type, each parameter's grad is a view of the buffer.
// In another type (fp32 sums of bf16 gradients), or where a parameter is not in one piece in the buffer (the
// per_parameter layout), each gradient is put there as soon as autograd has it, and dropped: one gradient at
// a time exists beside the buffer.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shard/buffer_pool.h"
#include "shard/unit_layout.h"
#include "shard/wrap_policy.h"

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
  class AddToBuffer;
  at::Tensor view_of(size_t parameter) const;
  void put(size_t parameter, const at::Tensor& gradient);

  const std::vector<NamedParameter>& parameters_;
  const UnitLayout& layout_;
  at::ScalarType dtype_;
  bool adds_by_hook_;  ///< decided once: FullParameters shows the parameters in another type for a while
  std::vector<bool> holds_;  ///< by parameter: what adds_by_hook_ has put there
  at::Tensor flat_;
};

}  // namespace fsdp::shard
