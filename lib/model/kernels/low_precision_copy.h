#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::kernels {

/// A copy of a tensor in a smaller type, kept in step with it: an optimizer that updates fp32 master weights
/// also writes the weights that the next gathers need. The copy knows the version of the tensor that it
/// shows, so writes by anybody else make it old. Not thread-safe.
class LowPrecisionCopy {
 public:
  /// `values`: contiguous memory of of.numel() elements, on the same device.
  LowPrecisionCopy(at::Tensor of, at::Tensor values);

  /// Requires, for reading: is_current().
  const at::Tensor& values() const { return values_; }
  bool is_current() const { return version_ == of_._version(); }
  /// Casts the tensor to values(), unless they are current.
  void update();
  /// Casts the tensor to values().
  void rewrite();
  /// Declares that the writer of the tensor has written its change to values() too.
  void note_written() { version_ = of_._version(); }
  /// Declares that the tensor may change without a change of its version.
  void note_old() { version_ = kOld; }

 private:
  static constexpr int64_t kOld = -1;

  at::Tensor of_, values_;
  int64_t version_ = kOld;
};

}  // namespace fsdp::kernels
