#include "torch_backend/c10d_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/jit_type.h>

#include <utility>

#include "base/util/error.h"
#include "base/util/limits.h"

namespace fsdp::comm {

CollectiveWork::CollectiveWork(int rank, C10dOperation operation)
    : c10d::Work(rank, operation.type, operation.title),
      operation_(std::move(operation)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

std::exception_ptr CollectiveWork::run(TensorCollectives& collectives) {
  try {
    // Results are written without autograd, as by all backends.
    const at::AutoDispatchBelowADInplaceOrView guard;
    collectives.set_timeout(operation_.timeout_seconds);
    operation_.body(collectives);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void CollectiveWork::complete(const std::exception_ptr& error) {
  operation_.body = nullptr;
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(operation_.outputs));
  }
  finish(error);
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, is_done);
  } else if (!cv_.wait_for(lock, timeout, is_done)) {
    fail(ErrorKind::kTimeout, operation_.title, " has not ended within ", timeout.count(),
         " ms, the time-out given to wait()");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

ReceiveWork::ReceiveWork(int rank, std::shared_ptr<Mailboxes> mailboxes,
                         std::shared_ptr<Mailboxes::Receive> receive, double timeout_seconds)
    : c10d::Work(rank,
                 receive->from == Mailboxes::kAnyRank ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                 "fsdp_shm:recv"),
      mailboxes_(std::move(mailboxes)),
      receive_(std::move(receive)),
      timeout_seconds_(timeout_seconds) {}

bool ReceiveWork::isCompleted() { return c10d::Work::isCompleted() || mailboxes_->is_done(*receive_); }

bool ReceiveWork::wait(std::chrono::milliseconds timeout) {
  const double given = std::chrono::duration<double>(timeout).count();
  try {
    mailboxes_->wait(receive_, timeout == kNoTimeout ? timeout_seconds_ : given);
  } catch (...) {
    finish(std::current_exception());
    throw;
  }
  finish();
  return true;
}

void C10dQueue::add(const c10::intrusive_ptr<CollectiveWork>& work) {
  constexpr int kThreads = 2;
  std::unique_lock lock(mutex_);
  if (ended_) fail(ErrorKind::kUsage, "the process group has been shut down");
  ++issued_;
  if (!work->is_async() && waiting_.empty() && !busy_) return run(lock, work);
  waiting_.push_back(work);
  if (threads_.empty()) {
    for (int i = 0; i < kThreads; ++i) {
      threads_.push_back(util::start_thread([self = shared_from_this()] { self->work_through(); }));
    }
  }
  lock.unlock();
  changed_.notify_all();
}

/// Leaves the lock released. The next work may begin before this one is complete, because its callbacks may
/// take long.
void C10dQueue::run(std::unique_lock<std::mutex>& lock, c10::intrusive_ptr<CollectiveWork> work) {
  busy_ = true;
  lock.unlock();
  const std::exception_ptr error = work->run(*collectives_);
  lock.lock();
  busy_ = false;
  lock.unlock();
  changed_.notify_all();
  work->complete(error);
}

void C10dQueue::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
  threads_.clear();
}

uint64_t C10dQueue::issued() const {
  const std::lock_guard lock(mutex_);
  return issued_;
}

void C10dQueue::work_through() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !busy_ && (ended_ || !waiting_.empty()); });
    if (waiting_.empty()) return;
    c10::intrusive_ptr<CollectiveWork> work = std::move(waiting_.front());
    waiting_.pop_front();
    run(lock, std::move(work));  // releases the work without the lock
    lock.lock();
  }
}

}  // namespace fsdp::comm
