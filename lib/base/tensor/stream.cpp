#include "base/tensor/stream.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ParallelGuard.h>
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/util/error.h"
#include "base/util/time_slices.h"

namespace fsdp::util {

class Event::Completion {
 public:
  virtual ~Completion() = default;
  virtual void wait() = 0;
  virtual void synchronize() { wait(); }
  virtual bool reached() = 0;
};

class Stream::TaskQueue {
 public:
  virtual ~TaskQueue() = default;
  virtual Event run(std::function<void()> task, bool after_caller) = 0;
};

namespace {

class ThreadEvent final : public Event::Completion {
 public:
  explicit ThreadEvent(std::shared_future<void> done) : done_(std::move(done)) {}
  void wait() override { done_.get(); }
  bool reached() override { return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

 private:
  std::shared_future<void> done_;
};

class ThreadQueue final : public Stream::TaskQueue {
 public:
  explicit ThreadQueue(const StreamOptions& options)
      : patience_(options.patience),
        thread_([shared = shared_, name = options.name.substr(0, 15), is_short = options.short_time_slices] {
          pthread_setname_np(pthread_self(), name.c_str());
          std::optional<ShortTimeSlices> slices;
          if (is_short) slices.emplace();
          serve(*shared);
        }) {}

  ~ThreadQueue() override {
    std::deque<Task> dropped;
    std::exception_ptr failure;
    {
      std::lock_guard lock(shared_->mutex);
      shared_->closed = true;
      dropped.swap(shared_->tasks);
      failure = shared_->failure;
    }
    shared_->changed.notify_all();
    if (!failure) {
      failure = std::make_exception_ptr(
          Error(ErrorKind::kUnexpected, "the stream was destroyed before this task of it began"));
    }
    for (Task& task : dropped) settle(task, failure);
    if (thread_.get_id() == std::this_thread::get_id()) {  // a task released the last reference to the stream
      thread_.detach();
      return;
    }
    std::unique_lock lock(shared_->mutex);
    bool ended = shared_->changed.wait_for(lock, patience_, [&] { return shared_->ended; });
    lock.unlock();
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

  Event run(std::function<void()> body, bool) override {
    Task task{std::move(body), {}};
    auto event = std::make_shared<ThreadEvent>(task.done.get_future().share());
    {
      std::lock_guard lock(shared_->mutex);
      shared_->tasks.push_back(std::move(task));
    }
    shared_->changed.notify_all();
    return Event(std::move(event));
  }

 private:
  struct Task {
    std::function<void()> body;
    std::promise<void> done;
  };

  /// State of the thread, which may outlive the queue.
  struct SharedTasks {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    std::exception_ptr failure;  ///< exception of the first task that failed
    bool closed = false, ended = false;
  };

  static void settle(Task& task, const std::exception_ptr& failure) {
    task.body = nullptr;  // releases its captures before its event is reached
    if (failure) {
      task.done.set_exception(failure);
    } else {
      task.done.set_value();
    }
  }

  static void serve(SharedTasks& shared) {
    at::NoGradGuard no_grad;
    c10::ParallelGuard on_this_thread_alone(true);
    std::unique_lock lock(shared.mutex);
    for (;;) {
      shared.changed.wait(lock, [&] { return shared.closed || !shared.tasks.empty(); });
      if (shared.closed) break;
      Task task = std::move(shared.tasks.front());
      shared.tasks.pop_front();
      std::exception_ptr failure = shared.failure;
      if (!failure) {
        lock.unlock();
        try {
          task.body();
        } catch (...) {
          failure = std::current_exception();
        }
        lock.lock();
        shared.failure = failure;
      }
      lock.unlock();
      settle(task, failure);
      lock.lock();
    }
    shared.ended = true;
    shared.changed.notify_all();
  }

  std::chrono::milliseconds patience_;
  std::shared_ptr<SharedTasks> shared_ = std::make_shared<SharedTasks>();
  std::thread thread_;  // last: it uses the members above
};

/// Events of one device, which are recorded again and again: a step would otherwise create and destroy dozens
/// of events for each unit. Re-recording does not change what streams already wait for. Keeps as many events
/// as were in use at once. Thread-safe.
class EventPool {
 public:
  explicit EventPool(c10::DeviceType type) : type_(type) {}

  c10::Event take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return c10::Event(type_);
    c10::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void give_back(c10::Event event) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(event));
  }

 private:
  c10::DeviceType type_;
  std::mutex mutex_;
  std::vector<c10::Event> free_;
};

/// An event that returns to its pool.
class PooledEvent {
 public:
  explicit PooledEvent(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  ~PooledEvent() { pool_->give_back(std::move(event_)); }
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;
  c10::Event* operator->() { return &event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  c10::Event event_;
};

class DeviceEvent final : public Event::Completion {
 public:
  DeviceEvent(c10::Device device, std::shared_ptr<EventPool> pool, std::exception_ptr failure)
      : device_(device), event_(std::move(pool)), failure_(std::move(failure)) {}

  void record(const c10::Stream& stream) { event_->record(stream); }
  void wait() override {
    if (failure_) std::rethrow_exception(failure_);
    event_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  void synchronize() override {
    if (failure_) std::rethrow_exception(failure_);
    // A thread without a current device would initialize the first one.
    const c10::DeviceGuard current(device_);
    event_->synchronize();
  }
  bool reached() override { return failure_ || event_->query(); }

 private:
  c10::Device device_;
  PooledEvent event_;
  std::exception_ptr failure_;
};

class DeviceQueue final : public Stream::TaskQueue {
 public:
  explicit DeviceQueue(c10::Device device)
      : guard_(device.type()),
        device_(device.has_index() ? device : guard_.getDevice()),
        stream_(guard_.getStreamFromGlobalPool(device_, /*isHighPriority=*/true)) {}

  Event run(std::function<void()> task, bool after_caller) override {
    if (!failure_) {
      if (after_caller) {
        PooledEvent issued(events_);
        issued->record(guard_.getStream(device_));
        issued->block(stream_);
      }
      try {
        at::NoGradGuard no_grad;
        c10::StreamGuard current(stream_);
        std::function<void()> body = std::move(task);
        body();
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
    auto event = std::make_shared<DeviceEvent>(device_, events_, failure_);
    if (!failure_) event->record(stream_);
    return Event(std::move(event));
  }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Device device_;
  c10::Stream stream_;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>(device_.type());
  std::exception_ptr failure_;
};

}  // namespace

void Event::wait() const {
  if (state_) state_->wait();
}

void Event::synchronize() const {
  if (state_) state_->synchronize();
}

bool Event::reached() const { return !state_ || state_->reached(); }

Stream::Stream(const StreamOptions& options) {
  if (options.device.is_cpu()) {
    queue_ = std::make_unique<ThreadQueue>(options);
  } else {
    queue_ = std::make_unique<DeviceQueue>(options.device);
  }
}

Stream::~Stream() = default;

Event Stream::run(std::function<void()> task) { return queue_->run(std::move(task), true); }

Event Stream::run_apart(std::function<void()> task) { return queue_->run(std::move(task), false); }

}  // namespace fsdp::util
