#include "comm/fake/fake_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/util/error.h"
#include "comm/api/memory_operations.h"
#include "comm/api/stream_communicator.h"

namespace fsdp::comm {

/// Pending tasks in the order of issue. Threads that wait run them, one thread at a time; the host thread of
/// a unit waits too (shard/engine/unit.h).
class FakeCommunicator::Queue {
 public:
  explicit Queue(FakeTiming when) : timing(when) {}

  FakeTiming timing;
  std::vector<std::shared_ptr<Queue>>
      beside{};  ///< queues of groups of all ranks, which are not ordered with this queue

  void set_timing(FakeTiming when) {
    timing = when;
    for (const auto& each : beside) each->set_timing(when);
  }
  void progress() {
    run_all();
    for (const auto& each : beside) each->progress();
  }

  /// The number of the task, from 1.
  int64_t push(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    return begun_ + static_cast<int64_t>(tasks_.size());
  }

  /// Returns when all tasks up to this number are done, by this or another thread, but not later: a task may
  /// wait for a thread that waits for an earlier task.
  void run_up_to(int64_t number) {
    std::unique_lock lock(mutex_);
    if (runner_ == std::this_thread::get_id()) {  // a task waits for another
      while (begun_ < number && !tasks_.empty()) rethrow(run_first(lock));
      return;
    }
    while (done_ < number) {
      if (runner_ != std::thread::id()) {
        changed_.wait(lock);
        continue;
      }
      runner_ = std::this_thread::get_id();
      const std::exception_ptr failure = run_first(lock);
      runner_ = {};
      done_ = begun_;
      changed_.notify_all();
      rethrow(failure);
    }
  }

  void run_all() {
    std::unique_lock lock(mutex_);
    const int64_t last = begun_ + static_cast<int64_t>(tasks_.size());
    lock.unlock();
    run_up_to(last);
  }

 private:
  static void rethrow(const std::exception_ptr& failure) {
    if (failure) std::rethrow_exception(failure);
  }

  /// Returns the exception of the task.
  std::exception_ptr run_first(std::unique_lock<std::mutex>& lock) {
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++begun_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      task();
    } catch (...) {
      failure = std::current_exception();
    }
    task = nullptr;
    lock.lock();
    return failure;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread::id runner_;
  int64_t begun_ = 0;
  int64_t done_ = 0;  ///< all tasks up to this number; tasks run inside a task are done with it
};

class FakeCommunicator::QueuedWork final : public Work {
 public:
  QueuedWork(std::shared_ptr<Queue> queue, int64_t number) : queue_(std::move(queue)), number_(number) {}
  void wait() override { queue_->run_up_to(number_); }

 private:
  std::shared_ptr<Queue> queue_;
  int64_t number_;
};

FakeCommunicator::FakeCommunicator(int world_size, FakeTiming timing)
    : FakeCommunicator(world_size, std::make_shared<Queue>(timing)) {}

FakeCommunicator::FakeCommunicator(int world_size, std::shared_ptr<Queue> queue)
    : world_size_(world_size), queue_(std::move(queue)) {
  FSDP_CHECK(world_size >= 1, "a world of ", world_size, " ranks");
}

void FakeCommunicator::set_timing(FakeTiming timing) {
  progress();
  queue_->set_timing(timing);
}

void FakeCommunicator::progress() { queue_->progress(); }

WorkPtr FakeCommunicator::issue(std::function<void()> task) {
  int64_t number = queue_->push(std::move(task));
  if (queue_->timing == FakeTiming::kAtOnce) queue_->run_all();
  return std::make_unique<QueuedWork>(queue_, number);
}

WorkPtr FakeCommunicator::collective(const Collective& call, const CallSite& site) {
  FSDP_CHECK(call.root == 0, "rank ", call.root, " has nothing to send");
  if (call.kind == Collective::Kind::kShift) {
    check_shift(call.output, call.input, site);
    return issue([output = call.output, input = call.input] {
      at::NoGradGuard no_grad;
      output.view({-1}).copy_(input.view({-1}));
    });
  }
  const bool gathers = call.kind == Collective::Kind::kAllGather;
  if (!gathers && call.kind != Collective::Kind::kReduceScatter) return issue([] {});
  const int64_t part = call.payload().numel();
  FSDP_CHECK((gathers ? call.output : call.input).numel() == world_size_ * part, call.output.numel(),
             " elements out, ", call.input.numel(), " in, ", world_size_, " ranks");
  return issue([output = call.output, input = call.input, finish = call.finish, part, gathers] {
    at::NoGradGuard no_grad;
    const at::Tensor own = output.narrow(0, 0, part), from = input.narrow(0, 0, part);
    if (own.data_ptr() != from.data_ptr()) own.copy_(from);
    if (gathers) output.narrow(0, part, output.numel() - part).zero_();
    if (finish) finish_sums(output, finish);
  });
}

WorkPtr FakeCommunicator::enqueue(std::function<void()> task) { return issue(std::move(task)); }

std::shared_ptr<Communicator> FakeCommunicator::new_group(const std::string& /*name*/,
                                                          const std::vector<int>& ranks) {
  const int size = static_cast<int>(ranks.size());
  if (size < world_size_) return std::shared_ptr<Communicator>(new FakeCommunicator(size, queue_));
  queue_->beside.push_back(std::make_shared<Queue>(queue_->timing));
  return std::shared_ptr<Communicator>(new FakeCommunicator(size, queue_->beside.back()));
}

at::Tensor FakeCommunicator::allocate(int64_t numel, at::ScalarType dtype) {
  return at::zeros({numel}, at::TensorOptions().dtype(dtype));
}

std::shared_ptr<Communicator> make_fake_communicator(int world_size, at::Device device) {
  auto on_host = std::make_shared<FakeCommunicator>(world_size);
  if (device.is_cpu()) return on_host;
  return make_device_communicator(
      {.device = device, .host = on_host, .on_device = std::make_shared<FakeCommunicator>(world_size)});
}

}  // namespace fsdp::comm
