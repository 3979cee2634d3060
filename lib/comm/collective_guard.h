#pragma once

// CollectiveGuard: whether the collectives that a group has issued to a device end, and what went wrong when
// they do not.
//
// A collective of a device (NCCL) returns as soon as it is queued there, and fails later, when no call is
// under way that could throw. The guard remembers what is under way, oldest first, and looks at it every
// tenth of a second, in a thread of its own, and at every call. When one of them has failed or is late, the
// oldest names the failure, `abort` ends what runs on the device, so that whoever waits for it goes on, and
// every later call throws. A collective that waits for long looks into the run's store too, whether another
// rank of the group has failed: that one tells all at once, and they need not wait for their own time-out.

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

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/failure_report.h"
#include "comm/group_identity.h"
#include "comm/run_store.h"

namespace fsdp::comm {

class CollectiveGuard {
 public:
  enum class Outcome { kUnderWay, kDone, kTimedOut, kFailed };

  struct Options {
    GroupIdentity identity;
    RunStore store;
    std::string prefix;  ///< in the store, the group's alone
    std::chrono::milliseconds timeout{};
    /// How much longer than that a collective may be the oldest one before the guard itself calls it late:
    /// what the device's library takes to notice.
    std::chrono::milliseconds grace{5000};
    std::function<void()> abort;         ///< called once at most, in the guard's thread
    std::shared_ptr<Activity> activity;  ///< hears of each collective while it is the oldest; may be null
  };

  explicit CollectiveGuard(Options options);
  ~CollectiveGuard();
  CollectiveGuard(const CollectiveGuard&) = delete;
  CollectiveGuard& operator=(const CollectiveGuard&) = delete;

  /// Throws the group's failure (GroupError), if there is one. Takes up to four seconds then, because the
  /// ranks tell each other first.
  void check();

  /// A collective that is queued on the device. `look` says how it stands; it blocks nobody, and is called by
  /// any thread. Returns its number.
  int64_t add(const char* op, const CallSite& site, std::function<Outcome()> look);

  /// Blocks until the collective has ended; throws as check() does.
  void finish(int64_t number);

  /// The device's library has refused `what`, or has not answered in time: the group's failure, if there is
  /// no earlier one, and thrown.
  [[noreturn]] void fail(const std::string& what, const FailureSight& sight);

  bool failed() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Pending {
    int64_t number = 0;
    const char* op = "";
    std::string unit, pass;
    std::function<Outcome()> look;

    CallSite site() const { return {.unit = unit, .pass = pass.c_str()}; }
  };

  /// To the store, answered in a thread of its own: a store whose host is stopped may never answer.
  struct Question;

  void watch();
  // All that follow with the lock.
  void look();
  void begin_oldest();
  void note(FailureSight sight);
  bool others_failed();
  void report(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock);

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  int64_t next_number_ = 0;
  Clock::time_point oldest_since_{}, asked_at_{};
  std::shared_ptr<Question> question_;
  std::optional<int64_t> noted_;  ///< of the oldest, in Activity
  std::optional<FailureSight> sight_;
  std::optional<GroupFailure> failure_;  ///< what all together know of it
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace fsdp::comm
