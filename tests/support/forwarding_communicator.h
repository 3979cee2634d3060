#pragma once

// Communicators that hand everything on to another one; derive to look, to delay or to change on the way.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace fsdp::testing {

inline std::shared_ptr<comm::Communicator> borrowed(comm::Communicator& communicator) {
  return std::shared_ptr<comm::Communicator>(&communicator, [](comm::Communicator*) {});
}

class ForwardingCommunicator : public comm::Communicator {
 public:
  /// `inner` must outlive the object.
  explicit ForwardingCommunicator(comm::Communicator& inner) : inner_(inner) {}
  explicit ForwardingCommunicator(std::shared_ptr<comm::Communicator> inner)
      : owned_(std::move(inner)), inner_(*owned_) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::string backend_name() const override { return inner_.backend_name(); }
  std::unique_ptr<comm::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                         const comm::CallSite& site) override {
    return inner_.all_gather(output, input, site);
  }
  std::unique_ptr<comm::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                             const comm::CallSite& site) override {
    return inner_.reduce_scatter(output, input, site);
  }
  std::unique_ptr<comm::Work> all_reduce(const at::Tensor& tensor, comm::ReduceOp op,
                                         const comm::CallSite& site) override {
    return inner_.all_reduce(tensor, op, site);
  }
  std::unique_ptr<comm::Work> broadcast(const at::Tensor& tensor, int root,
                                        const comm::CallSite& site) override {
    return inner_.broadcast(tensor, root, site);
  }
  void barrier(const comm::CallSite& site) override { inner_.barrier(site); }
  std::unique_ptr<comm::Work> enqueue(std::function<void()> task) override {
    return inner_.enqueue(std::move(task));
  }
  at::Device device() const override { return inner_.device(); }
  std::unique_ptr<comm::Work> enqueue_release(std::function<void()> task) override {
    return inner_.enqueue_release(std::move(task));
  }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override { return inner_.allocate(numel, dtype); }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return inner_.allocate_on_host(numel, dtype);
  }
  std::unique_ptr<comm::Work> enqueue_with_common_memory(int64_t nbytes, const comm::CallSite& site,
                                                         std::function<void(c10::DataPtr)> task) override {
    return inner_.enqueue_with_common_memory(nbytes, site, std::move(task));
  }
  bool has_common_memory() const override { return inner_.has_common_memory(); }
  void reserve_common_memory(int64_t nbytes) override { inner_.reserve_common_memory(nbytes); }
  std::shared_ptr<comm::Communicator> subgroup(const std::string& name,
                                               const std::vector<int>& ranks) override {
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    return around(inner_.subgroup(name, ranks));
  }

 protected:
  /// What does for a subgroup what this does for the whole group.
  virtual std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) {
    return group;
  }
  comm::Communicator& inner() { return inner_; }

 private:
  std::shared_ptr<comm::Communicator> owned_;
  comm::Communicator& inner_;
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

  std::unique_ptr<comm::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                         const comm::CallSite& site) override {
    return between("all_gather", site, [&] { return inner().all_gather(output, input, site); });
  }
  std::unique_ptr<comm::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                             const comm::CallSite& site) override {
    return between("reduce_scatter", site, [&] { return inner().reduce_scatter(output, input, site); });
  }
  std::unique_ptr<comm::Work> all_reduce(const at::Tensor& tensor, comm::ReduceOp op,
                                         const comm::CallSite& site) override {
    return between("all_reduce", site, [&] { return inner().all_reduce(tensor, op, site); });
  }

 protected:
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<InterposedCommunicator>(std::move(group), before_, after_);
  }

 private:
  template <typename Issue>
  std::unique_ptr<comm::Work> between(const char* op, const comm::CallSite& site, const Issue& issue) {
    run(before_, op, site);
    std::unique_ptr<comm::Work> work = issue();
    run(after_, op, site);
    return work;
  }

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

  std::unique_ptr<comm::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                         const comm::CallSite& site) override {
    return finished(inner().all_gather(output, input, site));
  }
  std::unique_ptr<comm::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                             const comm::CallSite& site) override {
    return finished(inner().reduce_scatter(output, input, site));
  }
  std::unique_ptr<comm::Work> all_reduce(const at::Tensor& tensor, comm::ReduceOp op,
                                         const comm::CallSite& site) override {
    return finished(inner().all_reduce(tensor, op, site));
  }
  std::unique_ptr<comm::Work> enqueue(std::function<void()> task) override {
    return finished(inner().enqueue(std::move(task)));
  }
  std::unique_ptr<comm::Work> enqueue_release(std::function<void()> task) override {
    return finished(inner().enqueue_release(std::move(task)));
  }
  std::unique_ptr<comm::Work> enqueue_with_common_memory(int64_t nbytes, const comm::CallSite& site,
                                                         std::function<void(c10::DataPtr)> task) override {
    return finished(inner().enqueue_with_common_memory(nbytes, site, std::move(task)));
  }

 protected:
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
