#pragma once

// Decorators for tests: to observe collectives, to delay them or to wait for each.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/api/forwarding_communicator.h"

namespace fsdp::testing {

inline std::shared_ptr<comm::Communicator> borrowed(comm::Communicator& communicator) {
  return std::shared_ptr<comm::Communicator>(&communicator, [](comm::Communicator*) {});
}

class ForwardingCommunicator : public comm::ForwardingCommunicator {
 public:
  using comm::ForwardingCommunicator::ForwardingCommunicator;
  /// `inner` must outlive the object.
  explicit ForwardingCommunicator(comm::Communicator& inner)
      : comm::ForwardingCommunicator(borrowed(inner)) {}

  std::shared_ptr<comm::Communicator> new_group(const std::string& name,
                                                const std::vector<int>& ranks) final {
    return around(inner().new_group(name, ranks));
  }

 protected:
  /// The decorator of a subgroup of the inner communicator.
  virtual std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) {
    return group;
  }
};

/// Runs `before(op, site)` on the communication stream in front of every gather and reduction, and
/// `after(op, site)` behind it; either may be empty. What they do holds up the stream, not the caller.
class InterposedCommunicator : public ForwardingCommunicator {
 public:
  using Task = std::function<void(const std::string& op, const std::string& unit, const std::string& pass)>;

  template <typename Inner>
  InterposedCommunicator(Inner&& inner, Task before, Task after = nullptr)
      : ForwardingCommunicator(std::forward<Inner>(inner)),
        before_(std::move(before)),
        after_(std::move(after)) {}

 protected:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override {
    using Kind = comm::Collective::Kind;
    if (call.kind == Kind::kBroadcast || call.kind == Kind::kBarrier) return call.issue(inner(), site);
    run(before_, call.name(), site);
    std::unique_ptr<comm::Work> work = call.issue(inner(), site);
    run(after_, call.name(), site);
    return work;
  }
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<InterposedCommunicator>(std::move(group), before_, after_);
  }

 private:
  void run(const Task& task, const char* op, const comm::CallSite& site) {
    if (!task) return;
    inner().enqueue([task, op = std::string(op), unit = site.unit, pass = std::string(site.pass)] {
      task(op, unit, pass);
    });
  }

  Task before_, after_;
};

/// Makes the communication stream of chosen ranks late, each collective by another time.
inline std::shared_ptr<comm::Communicator> delayed(comm::Communicator& inner, bool before, bool after) {
  auto sleep = [rank = inner.rank(), calls = std::make_shared<std::atomic<int>>(0)](auto&&...) {
    int microseconds = (*calls)++ * 37 % 5 * 100 * (rank + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  };
  return std::make_shared<InterposedCommunicator>(inner, before ? sleep : InterposedCommunicator::Task(),
                                                  after ? sleep : InterposedCommunicator::Task());
}

/// Waits for everything where it is issued: no two things happen beside each other, so that what is held at
/// any moment is the same in every run.
class LockstepCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  std::unique_ptr<comm::Work> enqueue(std::function<void()> task) override {
    return finished(inner().enqueue(std::move(task)));
  }
  std::unique_ptr<comm::Work> enqueue_release(std::function<void()> task) override {
    return finished(inner().enqueue_release(std::move(task)));
  }

 protected:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override {
    return finished(call.issue(inner(), site));
  }
  std::unique_ptr<comm::Work> enqueue_with_memory(int64_t nbytes, const comm::CallSite& site,
                                                  std::function<void(c10::DataPtr)> task) override {
    return finished(ForwardingCommunicator::enqueue_with_memory(nbytes, site, std::move(task)));
  }
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<LockstepCommunicator>(std::move(group));
  }

 private:
  static std::unique_ptr<comm::Work> finished(std::unique_ptr<comm::Work> work) {
    work->wait();
    return comm::done_work();
  }
};

}  // namespace fsdp::testing
