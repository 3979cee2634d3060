#include "comm/api/activity.h"

#include <utility>

#include "base/util/clock.h"
#include "base/util/text.h"
#include "comm/api/forwarding_communicator.h"
#include "comm/api/group_failure.h"

namespace fsdp::comm {
namespace {

class ActivityCommunicator final : public ForwardingCommunicator {
 public:
  ActivityCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Activity> activity)
      : ForwardingCommunicator(std::move(inner)), activity_(std::move(activity)) {}

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return make_activity_communicator(inner().new_group(name, ranks), activity_);
  }

 protected:
  WorkPtr collective(const Collective& call, const CallSite& site) override {
    return noted(call.name(), site, [&] { return call.issue(inner(), site); });
  }
  /// Waits for the other ranks, for an all-gather into the memory.
  WorkPtr enqueue_with_memory(int64_t nbytes, const CallSite& site,
                              std::function<void(c10::DataPtr)> task) override {
    return noted("all_gather", site,
                 [&] { return ForwardingCommunicator::enqueue_with_memory(nbytes, site, std::move(task)); });
  }

 private:
  template <typename Issue>
  WorkPtr noted(const char* op, const CallSite& site, const Issue& issue) {
    const int64_t number = activity_->begin_collective(op, site);
    issue()->wait();
    activity_->end_collective(number);
    return done_work();
  }

  std::shared_ptr<Activity> activity_;
};

}  // namespace

void Activity::begin_step(int64_t step) {
  std::lock_guard lock(mutex_);
  state_.step = step;
  ++state_.steps_begun;
  step_began_ = Clock::now();
}

int64_t Activity::begin_collective(const char* op, const CallSite& site) {
  std::lock_guard lock(mutex_);
  in_progress_[next_number_] = {described(op, site), Clock::now()};
  return next_number_++;
}

void Activity::end_collective(int64_t number) {
  std::lock_guard lock(mutex_);
  auto ended = in_progress_.extract(number);
  if (ended.empty()) return;  // removed by leave_step()
  state_.last = std::move(ended.mapped().text);
  ++state_.collectives;
  last_ended_ = Clock::now();
}

void Activity::leave_step() {
  std::lock_guard lock(mutex_);
  in_progress_.clear();
  state_.step = 0;
}

Activity::Snapshot Activity::snapshot() const {
  std::lock_guard lock(mutex_);
  Snapshot now = state_;
  std::vector<std::string> texts;
  for (const auto& [number, collective] : in_progress_) texts.push_back(collective.text);
  now.collective = util::join(texts, " and ");
  now.seconds = util::seconds_since(in_progress_.empty() ? last_ended_ : in_progress_.begin()->second.began);
  now.step_seconds = util::seconds_since(step_began_);
  return now;
}

std::string describe(const Activity::Snapshot& snapshot) {
  std::string step = snapshot.step == 0 ? "before the first step" : concat("step ", snapshot.step);
  std::string seconds = concat(util::fixed(snapshot.seconds, 1), " s");
  if (!snapshot.collective.empty()) {
    return concat("in ", snapshot.collective, ", ", step, ", for ", seconds);
  }
  if (snapshot.last.empty()) return concat("computing, ", step, ", no collective so far");
  return concat("computing, ", step, ", ", seconds, " after ", snapshot.last);
}

std::shared_ptr<Communicator> make_activity_communicator(std::shared_ptr<Communicator> inner,
                                                         std::shared_ptr<Activity> activity) {
  return std::make_shared<ActivityCommunicator>(std::move(inner), std::move(activity));
}

}  // namespace fsdp::comm
