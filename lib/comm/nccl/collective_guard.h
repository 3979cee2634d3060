#pragma once

// CollectiveGuard: notices when a collective that a group has issued to a device does not end, and why.
//
// A collective of a device (NCCL) returns as soon as it is queued and may fail later, when no call is in
// progress that could throw; and to queue a group's first collective takes until all ranks have connected.
// The guard keeps the collectives in progress, oldest first, and checks the oldest at every call and every
// tenth of a second in its own thread. When that one has failed or is late, it names the failure; `abort`
// ends everything that runs on the device, which releases the threads that wait for it; and every later call
// throws. If a collective waits for long, the guard also looks up in the run's store
// whether another rank of the group has failed, so that the ranks need not wait for their own time-outs.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/group_failure.h"
#include "comm/api/run_store.h"

namespace fsdp::comm {

class CollectiveGuard {
 public:
  enum class Outcome { kUnderWay, kDone, kTimedOut, kFailed };

  struct Options {
    GroupIdentity identity;
    RunStore store;
    std::string prefix;  ///< prefix in the store, unique to the group
    std::chrono::milliseconds timeout{};
    /// Extra time for the device's library to notice a time-out. After `timeout` + `grace` the guard itself
    /// calls the oldest collective late.
    std::chrono::milliseconds grace{5000};
    std::function<void()> abort;         ///< called at most once, in the guard's thread
    std::shared_ptr<Activity> activity;  ///< records each collective while it is the oldest; may be null
  };

  explicit CollectiveGuard(Options options);
  ~CollectiveGuard();
  CollectiveGuard(const CollectiveGuard&) = delete;
  CollectiveGuard& operator=(const CollectiveGuard&) = delete;

  /// Throws the group's failure (GroupError), if there is one, after up to four seconds in which the ranks
  /// exchange their reports.
  void check();

  /// Adds a collective that is being queued on the device and returns its number. `look` returns its state;
  /// it must not block and is called from any thread.
  int64_t add(const char* op, const CallSite& site, std::function<Outcome()> look);

  /// Blocks until the collective has ended; throws as check() does.
  void finish(int64_t number);

  /// Reports that the device's library has refused the operation `what` or not answered in time: makes this
  /// the group's failure unless there is an earlier one, and throws the failure.
  [[noreturn]] void fail(const std::string& what, const FailureSight& sight);

  bool failed() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct PendingCollective {
    int64_t number = 0;
    const char* op = "";
    std::string unit, pass;
    std::function<Outcome()> look;

    CallSite site() const { return {.unit = unit, .pass = pass.c_str()}; }
  };

  /// A query of the store, in a separate thread: a store whose host is stopped may never answer.
  struct Question;

  void watch();
  // The following expect the lock to be held.
  void look();
  void begin_oldest();
  void note(FailureSight sight);
  bool others_failed();
  void report(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock);

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PendingCollective> pending_;
  int64_t next_number_ = 0;
  Clock::time_point oldest_since_{}, asked_at_{};
  std::shared_ptr<Question> question_;
  std::optional<int64_t> noted_;  ///< number of the oldest collective in Activity
  std::optional<FailureSight> sight_;
  std::optional<GroupFailure> failure_;  ///< result of share_failure()
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace fsdp::comm
