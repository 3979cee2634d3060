#include "comm/api/stream_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "base/tensor/stream.h"
#include "base/util/clock.h"
#include "base/util/error.h"
#include "comm/api/forwarding_communicator.h"

namespace fsdp::comm {
namespace {

class StreamWork final : public Work {
 public:
  StreamWork(util::Event done, std::shared_ptr<const Communicator> on_device)
      : done_(std::move(done)), on_device_(std::move(on_device)) {}
  void wait() override { done_.wait(); }
  void synchronize() override {
    done_.synchronize();
    on_device_->check();
  }

 private:
  util::Event done_;
  std::shared_ptr<const Communicator> on_device_;
};

/// Runs the task once the caller's stream has waited for the operations issued before it.
class ReleaseWork final : public Work {
 public:
  ReleaseWork(util::Event done, std::function<void()> task)
      : done_(std::move(done)), task_(std::move(task)) {}

  ~ReleaseWork() override {
    if (!task_) return;
    try {
      wait();
    } catch (const std::exception&) {
      // A failure of an earlier collective, which the Work of that one reports; the task frees its memory.
    }
  }

  void wait() override {
    auto task = std::exchange(task_, nullptr);
    done_.wait();
    if (task) task();
  }
  void synchronize() override {
    done_.synchronize();
    wait();
  }

 private:
  util::Event done_;
  std::function<void()> task_;
};

/// A decorator of a host communicator that allocates on a device.
class OnDevice : public ForwardingCommunicator {
 public:
  OnDevice(at::Device device, std::shared_ptr<Communicator> host)
      : ForwardingCommunicator(std::move(host)), device_(device) {}

  at::Device device() const override { return device_; }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_));
  }
  CommonMemory* common_memory() override { return nullptr; }
  /// The caller's stream waits, and the host does not know for how long.
  std::optional<double> waited_seconds() const override { return std::nullopt; }

 private:
  const at::Device device_;
};

/// Forwards everything except collectives of the device's tensors to the host communicator.
class DeviceCommunicator final : public OnDevice {
 public:
  explicit DeviceCommunicator(const DeviceParts& parts)
      : OnDevice(parts.device, parts.host),
        on_device_(parts.on_device),
        stream_({.name = "fsdp comm", .device = parts.device}) {
    FSDP_CHECK(!device().is_cpu() && inner().world_size() == on_device_->world_size() &&
               inner().rank() == on_device_->rank());
  }

  std::string backend_name() const override { return on_device_->backend_name(); }
  void check() const override { on_device_->check(); }

  WorkPtr enqueue(std::function<void()> task) override { return issue(std::move(task)); }
  WorkPtr enqueue_release(std::function<void()> task) override {
    // The task runs behind the wait of the caller's stream, so it does not matter what that stream does.
    return std::make_unique<ReleaseWork>(stream_.run_apart([] {}), std::move(task));
  }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (ranks.size() > 1) return Communicator::subgroup(name, ranks);
    auto alone = std::make_shared<SingleCommunicator>();
    return make_device_communicator({device(), alone, alone});
  }

  std::shared_ptr<Communicator> host_group(const std::string& name, const std::vector<int>& ranks) override {
    return inner().subgroup(name, ranks);
  }
  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return make_device_communicator(
        {device(), inner().new_group(name, ranks), on_device_->new_group(name, ranks)});
  }

 protected:
  WorkPtr collective(const Collective& call, const CallSite& site) override {
    if (!call.output.defined() || call.output.is_cpu()) return call.issue(inner(), site);
    return issue([&] { call.issue(*on_device_, site)->wait(); });
  }

 private:
  /// Runs the task on the calling thread, before it returns.
  WorkPtr issue(std::function<void()> task) {
    return std::make_unique<StreamWork>(stream_.run(std::move(task)), on_device_);
  }

  std::shared_ptr<Communicator> on_device_;
  util::Stream stream_;
};

class StagedCommunicator final : public OnDevice {
 public:
  using OnDevice::OnDevice;

  std::string backend_name() const override { return inner().backend_name() + " through host memory"; }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_shared<StagedCommunicator>(device(), inner().new_group(name, ranks));
  }

 protected:
  WorkPtr collective(const Collective& call, const CallSite& site) override {
    if (call.kind == Collective::Kind::kBarrier) return call.issue(inner(), site);
    Collective staged = call;
    staged.input = call.input.to(at::kCPU);
    staged.output = call.output.is_same(call.input)
                        ? staged.input
                        : at::empty(call.output.sizes(), call.output.options().device(at::kCPU));
    staged.issue(inner(), site)->wait();
    call.output.copy_(staged.output);
    return done_work();
  }
};

/// Time for which the collectives of one queue have run, including the one under way. Thread-safe.
class CollectiveClock {
 public:
  void begin() {
    std::lock_guard lock(mutex_);
    began_ = Clock::now();
  }
  void end() {
    std::lock_guard lock(mutex_);
    ran_ += util::seconds_since(*std::exchange(began_, std::nullopt));
  }
  double seconds() const {
    std::lock_guard lock(mutex_);
    return ran_ + (began_ ? util::seconds_since(*began_) : 0);
  }

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  double ran_ = 0;
  std::optional<Clock::time_point> began_;
};

using Seconds = std::shared_ptr<std::atomic<double>>;

/// Counts waiting for other ranks, but not for this rank's own tasks in the queue, such as casts.
class QueuedWork final : public Work {
 public:
  QueuedWork(util::Event done, std::shared_ptr<const CollectiveClock> clock, Seconds waited)
      : done_(std::move(done)), clock_(std::move(clock)), waited_(std::move(waited)) {}

  void wait() override {
    const double before = clock_->seconds();
    done_.wait();
    *waited_ += clock_->seconds() - before;
  }

 private:
  util::Event done_;
  std::shared_ptr<const CollectiveClock> clock_;
  Seconds waited_;
};

class QueuedCommunicator final : public ForwardingCommunicator {
 public:
  QueuedCommunicator(std::shared_ptr<Communicator> inner, const std::string& thread_name, Seconds waited)
      : ForwardingCommunicator(std::move(inner)),
        waited_(std::move(waited)),
        stream_({.name = thread_name, .short_time_slices = true}) {}

  std::optional<double> waited_seconds() const override { return waited_->load(); }

  WorkPtr enqueue(std::function<void()> task) override {
    return std::make_unique<QueuedWork>(stream_.run(std::move(task)), clock_, waited_);
  }
  WorkPtr enqueue_release(std::function<void()> task) override { return enqueue(std::move(task)); }

  std::shared_ptr<Communicator> new_group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_shared<QueuedCommunicator>(inner().new_group(name, ranks), "fsdp " + name, waited_);
  }

 protected:
  WorkPtr collective(const Collective& call, const CallSite& site) override {
    check(call, site);
    return push(
        site, [call](Communicator& inner, const CallSite& its_site) { call.issue(inner, its_site)->wait(); });
  }
  WorkPtr enqueue_with_memory(int64_t nbytes, const CallSite& site,
                              std::function<void(c10::DataPtr)> task) override {
    return push(site, [nbytes, task = std::move(task)](Communicator& inner, const CallSite& its_site) {
      inner.common_memory()->enqueue_with_memory(nbytes, its_site, task)->wait();
    });
  }

 private:
  /// Checked at the call, so that the stack trace shows the caller.
  void check(const Collective& call, const CallSite& site) const {
    using Kind = Collective::Kind;
    if (call.kind == Kind::kBroadcast) {
      FSDP_CHECK(call.root >= 0 && call.root < world_size(), "broadcast of ", site.unit, " from rank ",
                 call.root);
    }
    if (call.kind == Kind::kShift) return check_shift(call.output, call.input, site);
    if (call.kind != Kind::kAllGather && call.kind != Kind::kReduceScatter) return;
    const at::Tensor& part = call.payload();
    const at::Tensor& whole = call.kind == Kind::kAllGather ? call.output : call.input;
    FSDP_CHECK(whole.numel() == part.numel() * world_size() && whole.scalar_type() == part.scalar_type(),
               call.name(), " of ", site.unit, ": ", whole.numel(), " elements of ",
               c10::toString(whole.scalar_type()), " and a part of ", part.numel(), " of ",
               c10::toString(part.scalar_type()), " on ", world_size(), " ranks");
  }

  template <typename Operation>
  WorkPtr push(const CallSite& site, Operation operation) {
    return enqueue([inner = shared_inner(), unit = site.unit, pass = std::string(site.pass),
                    operation = std::move(operation), clock = clock_] {
      clock->begin();
      operation(*inner, {.unit = unit, .pass = pass.c_str()});
      clock->end();
    });
  }

  std::shared_ptr<CollectiveClock> clock_ = std::make_shared<CollectiveClock>();
  Seconds waited_;
  util::Stream stream_;
};

}  // namespace

std::shared_ptr<Communicator> make_queued_communicator(std::shared_ptr<Communicator> inner) {
  if (inner->world_size() == 1) return inner;
  return std::make_shared<QueuedCommunicator>(std::move(inner), "fsdp comm",
                                              std::make_shared<std::atomic<double>>(0));
}

std::shared_ptr<Communicator> make_device_communicator(const DeviceParts& parts) {
  return std::make_shared<DeviceCommunicator>(parts);
}

std::shared_ptr<Communicator> make_staged_communicator(at::Device device,
                                                       std::shared_ptr<Communicator> host) {
  return std::make_shared<StagedCommunicator>(device, std::move(host));
}

}  // namespace fsdp::comm
