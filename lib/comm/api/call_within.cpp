#include "comm/api/call_within.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "base/util/limits.h"

namespace fsdp::comm {
namespace {

thread_local bool serves = false;  ///< whether this thread belongs to a Helper

/// A thread that runs the tasks of another. A new thread for each call would cost more than most calls take.
class Helper {
 public:
  Helper() : state_(std::make_shared<HelperState>()) {
    util::start_thread([state = state_] { serve(*state); }).detach();
  }
  ~Helper() {
    if (is_of_parent()) return;
    const std::lock_guard lock(state_->mutex);
    state_->is_over = true;
    state_->changed.notify_one();
  }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  enum class HelperAnswer { kDone, kLate, kGone };
  HelperAnswer run(std::chrono::milliseconds limit, const std::function<void()>& task) {
    if (is_of_parent()) return HelperAnswer::kGone;
    std::unique_lock lock(state_->mutex);
    if (state_->is_over) return HelperAnswer::kGone;
    state_->task = task;
    state_->changed.notify_one();
    return state_->changed.wait_for(lock, limit, [this] { return !state_->task; }) ? HelperAnswer::kDone
                                                                                   : HelperAnswer::kLate;
  }

 private:
  struct HelperState {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> task;  ///< null when no task is waiting or running
    bool is_over = false;
  };

  /// Returns whether this process is a child, made by fork(), of the process that made the Helper. The child
  /// has only the thread that called fork(): no thread of the child serves, or unlocks a mutex that the
  /// serving thread had locked.
  bool is_of_parent() const { return process_ != ::getpid(); }

  static void serve(HelperState& state) {
    constexpr std::chrono::seconds kPatience{1};
    serves = true;
    std::unique_lock lock(state.mutex);
    while (!state.is_over) {
      if (!state.changed.wait_for(lock, kPatience, [&] { return state.task || state.is_over; })) {
        state.is_over = true;
      }
      if (!state.task) continue;
      auto task = state.task;
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      state.task = nullptr;
      state.changed.notify_one();
    }
  }

  const pid_t process_ = ::getpid();
  std::shared_ptr<HelperState> state_;
};

}  // namespace

bool run_within(std::chrono::milliseconds limit, std::function<void()> task) {
  if (serves) {
    task();
    return true;
  }
  thread_local std::unique_ptr<Helper> helper;
  auto answer = helper ? helper->run(limit, task) : Helper::HelperAnswer::kGone;
  if (answer == Helper::HelperAnswer::kGone) {
    helper = std::make_unique<Helper>();
    answer = helper->run(limit, task);
  }
  if (answer == Helper::HelperAnswer::kLate) helper.reset();
  return answer == Helper::HelperAnswer::kDone;
}

}  // namespace fsdp::comm
