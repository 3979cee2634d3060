#include "comm/nccl/collective_guard.h"

#include <pthread.h>

#include <atomic>
#include <utility>

#include "base/util/error.h"
#include "base/util/limits.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPeriod{100};
constexpr milliseconds kAskOthers{1000};       ///< interval between queries of the store
constexpr milliseconds kReportPatience{4000};  ///< share_failure() takes up to three seconds, abort some time

}  // namespace

struct CollectiveGuard::Question {
  std::atomic<bool> answered = false, failed = false;
};

CollectiveGuard::CollectiveGuard(Options options)
    : options_(std::move(options)), thread_([this] { watch(); }) {}

CollectiveGuard::~CollectiveGuard() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CollectiveGuard::check() {
  std::unique_lock lock(mutex_);
  look();
  if (sight_) throw_failure(lock);
}

int64_t CollectiveGuard::add(const char* op, const CallSite& site, std::function<Outcome()> look) {
  std::lock_guard lock(mutex_);
  pending_.push_back({next_number_, op, site.unit, site.pass, std::move(look)});
  if (pending_.size() == 1) {
    begin_oldest();
    changed_.notify_all();
  }
  return next_number_++;
}

void CollectiveGuard::finish(int64_t number) {
  std::unique_lock lock(mutex_);
  for (;;) {
    look();
    if (sight_) throw_failure(lock);
    if (pending_.empty() || pending_.front().number > number) return;
    changed_.wait_for(lock, milliseconds(2));
  }
}

void CollectiveGuard::fail(const std::string& what, const FailureSight& sight) {
  std::unique_lock lock(mutex_);
  look();
  if (!sight_) {
    note(sight);
    sight_->what = what;
  }
  throw_failure(lock);
}

bool CollectiveGuard::failed() const {
  std::lock_guard lock(mutex_);
  return sight_.has_value();
}

void CollectiveGuard::look() {
  while (!sight_ && !pending_.empty()) {
    switch (pending_.front().look()) {
      case Outcome::kUnderWay:
        if (Clock::now() - oldest_since_ > options_.timeout + options_.grace) {
          note({.timeout = true, .cause = "it does not finish on the device"});
        }
        return;
      case Outcome::kTimedOut:
        return note({.timeout = true, .cause = "time-out of c10d's watchdog"});
      case Outcome::kFailed:
        return note({.timeout = false, .cause = "the communication library reports a failure"});
      case Outcome::kDone:
        if (noted_) options_.activity->end_collective(*std::exchange(noted_, std::nullopt));
        pending_.pop_front();
        if (!pending_.empty()) begin_oldest();
        changed_.notify_all();
    }
  }
}

void CollectiveGuard::begin_oldest() {
  const PendingCollective& oldest = pending_.front();
  oldest_since_ = asked_at_ = Clock::now();
  if (options_.activity) noted_ = options_.activity->begin_collective(oldest.op, oldest.site());
}

void CollectiveGuard::note(FailureSight sight) {
  if (!pending_.empty()) sight.what = described(pending_.front().op, pending_.front().site());
  sight_ = std::move(sight);
  changed_.notify_all();
}

void CollectiveGuard::watch() {
  pthread_setname_np(pthread_self(), "fsdp guard");
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (sight_) return report(lock);
    if (pending_.empty()) {
      changed_.wait(lock, [this] { return ended_ || sight_ || !pending_.empty(); });
      continue;
    }
    changed_.wait_for(lock, kPeriod, [this] { return ended_ || sight_; });
    look();
    // report() reads the other rank's sight from the store.
    if (!sight_ && others_failed()) note({.timeout = false, .cause = "another rank has failed"});
  }
}

bool CollectiveGuard::others_failed() {
  if (pending_.empty()) return false;
  if (question_ && question_->answered) return std::exchange(question_, nullptr)->failed;
  if (question_ || Clock::now() - asked_at_ < kAskOthers) return false;
  asked_at_ = Clock::now();
  question_ = std::make_shared<Question>();
  util::start_thread([question = question_, store = options_.store, key = failure_key(options_.prefix)] {
    try {
      question->failed = store->check({key});
    } catch (const std::exception&) {
      // The store may have ended with a rank that has finished; this rank still has its own time-out.
    }
    question->answered = true;
  }).detach();
  return false;
}

void CollectiveGuard::report(std::unique_lock<std::mutex>& lock) {
  const FailureSight sight = *sight_;
  lock.unlock();
  const auto abort = [this] {
    if (!options_.abort) return;
    try {
      options_.abort();
    } catch (const std::exception&) {
      // The operations then end with the process.
    }
  };
  GroupFailure failure =
      share_failure(options_.store, options_.prefix, options_.identity, sight, abort, options_.timeout);
  lock.lock();
  failure_ = std::move(failure);
  changed_.notify_all();
}

void CollectiveGuard::throw_failure(std::unique_lock<std::mutex>& lock) {
  changed_.wait_for(lock, kReportPatience, [this] { return failure_.has_value(); });
  const FailureSight sight = *sight_;
  const GroupFailure failure = failure_.value_or(
      GroupFailure{.timeout = sight.timeout,
                   .timeout_seconds = std::chrono::duration<double>(options_.timeout).count(),
                   .cause = sight.cause});
  lock.unlock();
  fail_group(options_.identity, sight.what, failure);
}

}  // namespace fsdp::comm
