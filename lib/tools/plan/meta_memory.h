#pragma once

// MetaMemory: counts the memory that meta tensors would need.

#include <cstdint>
#include <functional>
#include <memory>

namespace fsdp::plan {

/// During its lifetime, meta tensors made on its thread have distinct (invalid) addresses, so that kernels
/// may query them, and the listener is notified of their bytes. One at a time per thread.
class MetaMemory {
 public:
  struct Listener {
    /// Returns a number that is passed to `gives` when the memory is freed.
    std::function<size_t(int64_t bytes)> takes;
    std::function<void(size_t number)> gives;
  };
  explicit MetaMemory(Listener listener);
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// Within its scope, the listener is not notified of new memory.
  class Muted {
   public:
    Muted();
    ~Muted();
    Muted(const Muted&) = delete;
    Muted& operator=(const Muted&) = delete;

   private:
    bool before_;
  };

 private:
  friend class MetaAllocator;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fsdp::plan
