#pragma once

// The works of C10dBackend, which torch.distributed gives to callers that do not wait, and the queue that
// runs them.

#include <ATen/core/ivalue.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "torch_backend/mailboxes.h"
#include "torch_backend/tensor_collectives.h"

namespace fsdp::comm {

/// The operation of one work.
struct C10dOperation {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";  ///< title for profilers and messages
  bool async = true;       ///< whether the caller does not wait for it at once
  double timeout_seconds = 0;
  std::vector<at::Tensor> outputs{};
  std::function<void(TensorCollectives&)> body{};  ///< owns the tensors that it uses
};

class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(int rank, C10dOperation operation);

  bool is_async() const { return operation_.async; }
  /// Runs the operation and returns the exception, if any.
  std::exception_ptr run(TensorCollectives& collectives);
  /// Calls the callbacks of the future, and then ends wait().
  void complete(const std::exception_ptr& error);

  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return operation_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  C10dOperation operation_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// A message to be received; wait() itself receives it.
class ReceiveWork final : public c10d::Work {
 public:
  ReceiveWork(int rank, std::shared_ptr<Mailboxes> mailboxes, std::shared_ptr<Mailboxes::Receive> receive,
              double timeout_seconds);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  int sourceRank() const override { return receive_->sender; }
  std::vector<at::Tensor> result() override { return {receive_->tensor}; }

 private:
  const std::shared_ptr<Mailboxes> mailboxes_;
  const std::shared_ptr<Mailboxes::Receive> receive_;
  const double timeout_seconds_;
};

/// Runs works one at a time in the order of add(): in the caller's thread if the work is not asynchronous and
/// none is running, otherwise in two threads of its own, so that a callback in one may wait for a later work.
/// The threads share ownership of the queue, since a callback may destroy its owner. Thread-safe.
class C10dQueue : public std::enable_shared_from_this<C10dQueue> {
 public:
  explicit C10dQueue(std::shared_ptr<TensorCollectives> collectives) : collectives_(std::move(collectives)) {}

  void add(const c10::intrusive_ptr<CollectiveWork>& work);
  /// Waits for all works. Must be called before the last owner releases the queue.
  void end();
  /// Number of works so far.
  uint64_t issued() const;

 private:
  void work_through();
  void run(std::unique_lock<std::mutex>& lock, c10::intrusive_ptr<CollectiveWork> work);

  const std::shared_ptr<TensorCollectives> collectives_;
  mutable std::mutex mutex_;  ///< guards the following
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<CollectiveWork>> waiting_;
  bool busy_ = false, ended_ = false;
  uint64_t issued_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace fsdp::comm
