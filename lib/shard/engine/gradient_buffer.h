#pragma once

// GradientBuffer: one flat tensor in which autograd accumulates the gradients of a unit's parameters, so that
// they can be reduced over ranks in one piece.
//
// Kernels that support it (model/kernels/gradient_sink.h) write into the buffer directly. Any other gradient is
// copied or added as soon as autograd has computed it, and dropped: beside the buffer only one gradient
// exists at a time.
//
// Once the buffer has been taken, the parameters have gradients that throw when they are read: an optimizer of torch::optim
// over the module's parameters, for example, would train nothing.

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

#include "shard/engine/buffer_pool.h"
#include "shard/engine/parameter_source.h"
#include "shard/units/unit_layout.h"

namespace fsdp::shard {

class GradientBuffer {
 public:
  /// The parameters must all have the type in which they are used. The references must outlive the object. With `apart`,
  /// further gradients of a parameter (of tied weights) are not added to its first.
  GradientBuffer(const std::vector<NamedParameter>& parameters, const UnitLayout& layout,
                 at::ScalarType dtype, bool apart = false);
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  /// Gives autograd a buffer, [gathered_numel]; from the pool or, if that is null, from libtorch. One from
  /// libtorch with `stays` is kept and given again once nobody else holds it.
  void attach(BufferPool* pool, bool stays = false);
  bool is_attached() const { return flat_.defined(); }
  /// Returns the buffer with the accumulated gradients and zeros elsewhere; undefined when none is attached.
  at::Tensor detach();
  /// Drops the buffer, if one is attached, and the gradients that throw.
  void drop();
  /// With `apart`: that buffer, and one more for the second gradients of parameters, and so on as far as there are any.
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
  /// By parameter: gradients that the buffers have of it; where there is none, its place in flat_ is uninitialised.
  std::vector<size_t> held_;
  at::Tensor flat_;
  std::vector<const void*> sinks_;  ///< by parameter
  std::vector<at::Tensor> taken_;   ///< by parameter: the gradient that throws; undefined for frozen ones
  std::vector<at::Tensor> more_;    ///< of further gradients; zeros where there are none
  /// With `stays`: one for accumulation, and one that an earlier micro-batch made the gradient of the shard.
  std::array<at::Tensor, 2> kept_;
};

}  // namespace fsdp::shard
