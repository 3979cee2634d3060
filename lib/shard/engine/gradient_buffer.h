#pragma once

// GradientBuffer: one flat tensor in which autograd accumulates the gradients of a unit's parameters, so that
// they can be reduced over ranks in one piece.
//
// Kernels that support it (model/kernels/gradient_sink.h) write into the buffer directly. Any other gradient
// is copied or added as soon as autograd has computed it, and then dropped, so only one gradient at a time
// exists besides the buffer.
//
// Once the buffer has been taken, the parameters have gradients that throw when they are read. Without the
// error, an optimizer of torch::optim over the module's parameters, for example, would train nothing.

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "shard/engine/buffer_pool.h"
#include "shard/engine/parameter_source.h"
#include "shard/units/unit_layout.h"

namespace fsdp::shard {

class GradientBuffer {
 public:
  /// Requires: parameters in the type in which they are used, and references that outlive the object.
  /// `apart`: whether further gradients of a parameter (tied weights) are kept apart from its first.
  GradientBuffer(const std::vector<NamedParameter>& parameters, const UnitLayout& layout,
                 at::ScalarType dtype, bool apart = false);
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  /// Gives autograd a buffer [gathered_numel] from the pool or, if that is null, from libtorch. A buffer from
  /// libtorch is kept with `stays`, and is used again once nobody else holds it.
  void attach(BufferPool* pool, bool stays = false);
  bool is_attached() const { return flat_.defined(); }
  /// Returns the buffer with the accumulated gradients and zeros elsewhere; undefined when none is attached.
  at::Tensor detach();
  /// Drops the buffer, if one is attached, and the gradients that throw.
  void drop();
  /// Returns detach() and, with `apart`, one more buffer for the second gradients of parameters, and so on.
  std::vector<at::Tensor> detach_all();

  int64_t nbytes() const;

 private:
  class Sink;
  void put(size_t parameter, const at::Tensor& gradient);
  void show_taken_gradients(bool shown);
  /// The buffer for the next gradient of a parameter.
  at::Tensor next_of(size_t parameter);
  at::Tensor own_buffer(bool stays);

  const std::vector<NamedParameter>& parameters_;
  const UnitLayout& layout_;
  at::ScalarType dtype_;
  bool apart_;
  /// Number of gradients of each parameter in the buffers. Where it is 0, the parameter's place in flat_ is
  /// uninitialised.
  std::vector<size_t> held_;
  at::Tensor flat_;
  std::vector<const void*> sinks_;  ///< indexed by parameter
  std::vector<at::Tensor> taken_;   ///< each parameter's gradient that throws; undefined if frozen
  std::vector<at::Tensor> more_;    ///< buffers of further gradients; zeros where there are none
  /// Buffers kept with `stays`: one for accumulation, and one that an earlier micro-batch made the shard's
  /// gradient.
  std::array<at::Tensor, 2> kept_;
};

}  // namespace fsdp::shard
