#include "data/prefetch.h"

#include <utility>

#include "util/error.h"
#include "util/limits.h"

namespace fsdp::data {

PrefetchingBatches::PrefetchingBatches(const TrainLoader& source, int64_t depth)
    : source_(source), depth_(depth) {
  FSDP_CHECK(depth >= 1);
  thread_ = util::start_thread([this] { work(); });
}

PrefetchingBatches::~PrefetchingBatches() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Batch PrefetchingBatches::batch(int64_t first_global_sample, int64_t micro_batch) const {
  // A micro-batch depends only on where it begins, so one sequence covers steps of any length.
  const int64_t step = source_.samples_per_micro_step(), position = first_global_sample + micro_batch * step;
  std::unique_lock lock(mutex_);
  const int64_t comes = !ready_.empty() ? ready_.front().position : making_ >= 0 ? making_ : next_;
  if (comes != position) begin_at(position);
  changed_.wait(lock, [this] { return !ready_.empty(); });
  Made made = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  if (made.error) {
    begin_at(-1);  // what follows may never be requested
    std::rethrow_exception(made.error);
  }
  return std::move(made.batch);
}

void PrefetchingBatches::begin_at(int64_t position) const {
  ready_.clear();
  making_ = -1;
  next_ = position;
  ++round_;
  changed_.notify_all();
}

void PrefetchingBatches::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock,
                  [this] { return stops_ || (next_ >= 0 && static_cast<int64_t>(ready_.size()) < depth_); });
    if (stops_) return;
    const int64_t position = next_, round = round_;
    making_ = position;
    next_ += source_.samples_per_micro_step();
    lock.unlock();
    Made made{.position = position, .error = nullptr};
    try {
      made.batch = source_.batch(position, 0);
    } catch (...) {
      made.error = std::current_exception();
    }
    lock.lock();
    if (round != round_) continue;  // begin_at() was called meanwhile
    making_ = -1;
    if (made.error) next_ = -1;
    ready_.push_back(std::move(made));
    changed_.notify_all();
  }
}

}  // namespace fsdp::data
