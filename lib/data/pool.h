#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace fsdp::data {

/// Things that one thread at a time uses: taken out and given back, so that there are as many as were ever
/// used at once. Thread-safe.
template <typename Thing>
class Pool {
 public:
  std::unique_ptr<Thing> take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Thing> thing = std::move(free_.back());
        free_.pop_back();
        return thing;
      }
    }
    return std::make_unique<Thing>();
  }

  void give_back(std::unique_ptr<Thing> thing) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(thing));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Thing>> free_;
};

}  // namespace fsdp::data
