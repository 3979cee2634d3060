#pragma once

// CopyBeside: copies tensors to host memory while the caller computes.
//
// Copies from a device run in a stream of that device. Copies within host memory are made by a thread that
// takes a core only when nothing else needs it, so that they do not delay computation. finish() makes the
// copies that are left on all threads of the caller, and therefore takes at most as long as all copies would.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/tensor/stream.h"

namespace fsdp::checkpoint {

/// Used by one thread.
class CopyBeside {
 public:
  CopyBeside();
  /// Gives up the copies that have not begun.
  ~CopyBeside();
  CopyBeside(const CopyBeside&) = delete;
  CopyBeside& operator=(const CopyBeside&) = delete;

  /// Contiguous tensors of the same type and size, `to` in host memory, pinned if `from` is on a device.
  struct Copy {
    at::Tensor from, to;
  };
  /// Begins the copies. Until finish() returns, no `from` may change and no `to` may be used. Waits first for
  /// the copies that were begun before. `before` is called in the thread that copies within host memory,
  /// before it does; may be empty.
  void begin(const std::vector<Copy>& copies, std::function<void()> before = {});

  /// Makes the copies that are left and waits for the others. Does nothing if nothing was begun.
  void finish();

  /// Whether all copies have been made. Copies from devices count only after finish().
  bool is_done() const;

  /// The thread that copies within host memory.
  util::Stream& thread() { return thread_; }

 private:
  class Pieces;

  util::Stream thread_;
  std::shared_ptr<Pieces> pieces_;  ///< null: nothing was begun since finish()
  std::optional<util::Stream> on_device_;
  util::Event from_device_;
};

}  // namespace fsdp::checkpoint
