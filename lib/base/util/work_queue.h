#pragma once

// Threads that run tasks.

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/util/limits.h"

namespace fsdp::util {

/// Threads that start tasks in the order of add(). The destructor finishes only running ones. Thread-safe.
template <typename Result>
class WorkQueue {
 public:
  /// Starts threads; with 0, add() runs the task. Throws Error(kUsage) if the system refuses a thread.
  explicit WorkQueue(int threads) {
    try {
      for (int i = 0; i < threads; ++i) {
        threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
      }
    } catch (const std::system_error& error) {
      throw thread_refusal(error);
    }
  }

  std::future<Result> add(std::function<Result()> work) {
    std::packaged_task<Result()> task(std::move(work));
    std::future<Result> result = task.get_future();
    if (threads_.empty()) {
      task();
      return result;
    }
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(task));
    }
    changed_.notify_one();
    return result;
  }

  /// Discards the tasks that no thread has started.
  void clear() {
    std::lock_guard lock(mutex_);
    waiting_.clear();
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); }) && !stop.stop_requested()) {
      std::packaged_task<Result()> task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::packaged_task<Result()>> waiting_;
  std::vector<std::jthread> threads_;  ///< stopped and joined first
};

}  // namespace fsdp::util
