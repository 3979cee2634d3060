#pragma once

// MetaMemory: counts the memory that meta tensors would have.

#include <cstdint>
#include <functional>
#include <memory>

namespace fsdp::plan {

/// While it lives, meta tensors that its thread makes have an address of their own each (at which nothing is), so
/// that kernels may ask for it, and `takes` and `gives` hear of their bytes. One at a time on a thread.
class MetaMemory {
 public:
  struct Listener {
    /// Returns a number by which the end of that memory is told.
    std::function<size_t(int64_t bytes)> takes;
    std::function<void(size_t number)> gives;
  };
  explicit MetaMemory(Listener listener);
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// Lets memory be made that the listener does not hear of.
  class Unheard {
   public:
    Unheard();
    ~Unheard();
    Unheard(const Unheard&) = delete;
    Unheard& operator=(const Unheard&) = delete;

   private:
    bool before_;
  };

 private:
  friend class MetaAllocator;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fsdp::plan
