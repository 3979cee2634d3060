#include "comm/device_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "comm/forwarding_communicator.h"
#include "comm/single_communicator.h"
#include "util/error.h"
#include "util/stream.h"

namespace fsdp::comm {
namespace {

class StreamWork final : public Work {
 public:
  explicit StreamWork(util::Event done) : done_(std::move(done)) {}
  void wait() override { done_.wait(); }
  void synchronize() override { done_.synchronize(); }

 private:
  util::Event done_;
};

/// Runs the task when the caller's stream has waited for what was issued before it.
class ReleaseWork final : public Work {
 public:
  ReleaseWork(util::Event done, std::function<void()> task)
      : done_(std::move(done)), task_(std::move(task)) {}

  ~ReleaseWork() override {
    if (!task_) return;
    try {
      wait();
    } catch (const std::exception&) {
      // Of a collective before it, whose own Work has it too; the memory goes with the task.
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

/// Forwards to the communicator of the host what does not concern tensors of the device.
class DeviceCommunicator final : public ForwardingCommunicator {
 public:
  explicit DeviceCommunicator(const DeviceParts& parts)
      : ForwardingCommunicator(parts.host),
        device_(parts.device),
        on_device_(parts.on_device),
        stream_({.name = "fsdp comm", .device = parts.device}) {
    FSDP_CHECK(!device_.is_cpu() && inner().world_size() == on_device_->world_size() &&
               inner().rank() == on_device_->rank());
  }

  std::string backend_name() const override { return on_device_->backend_name(); }
  at::Device device() const override { return device_; }

  std::unique_ptr<Work> enqueue(std::function<void()> task) override { return issue(std::move(task)); }
  std::unique_ptr<Work> enqueue_release(std::function<void()> task) override {
    return std::make_unique<ReleaseWork>(stream_.run([] {}), std::move(task));
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_));
  }
  CommonMemory* common_memory() override { return nullptr; }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (ranks.size() > 1) return ForwardingCommunicator::subgroup(name, ranks);
    auto alone = std::make_shared<SingleCommunicator>();
    return make_device_communicator({device_, alone, alone});
  }

 protected:
  std::unique_ptr<Work> collective(const Collective& call, const CallSite& site) override {
    if (!call.output.defined() || call.output.is_cpu()) return call.issue(inner(), site);
    return issue([&] { call.issue(*on_device_, site)->wait(); });
  }
  std::shared_ptr<Communicator> new_subgroup(const std::string& name,
                                             const std::vector<int>& ranks) override {
    return make_device_communicator(
        {device_, inner().subgroup(name, ranks), on_device_->subgroup(name, ranks)});
  }

 private:
  /// On the calling thread, before it returns.
  std::unique_ptr<Work> issue(std::function<void()> task) {
    return std::make_unique<StreamWork>(stream_.run(std::move(task)));
  }

  at::Device device_;
  std::shared_ptr<Communicator> on_device_;
  util::Stream stream_;
};

class StagedCommunicator final : public ForwardingCommunicator {
 public:
  StagedCommunicator(at::Device device, std::shared_ptr<Communicator> host)
      : ForwardingCommunicator(std::move(host)), device_(device) {}

  std::string backend_name() const override { return inner().backend_name() + " through host memory"; }
  at::Device device() const override { return device_; }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_));
  }
  CommonMemory* common_memory() override { return nullptr; }

 protected:
  std::unique_ptr<Work> collective(const Collective& call, const CallSite& site) override {
    if (call.kind == Collective::Kind::kBarrier) return call.issue(inner(), site);
    Collective staged = call;
    staged.input = call.input.to(at::kCPU);
    staged.output = call.output.is_same(call.input)
                        ? staged.input
                        : at::empty({call.output.numel()}, call.output.options().device(at::kCPU));
    staged.issue(inner(), site)->wait();
    call.output.copy_(staged.output);
    return done_work();
  }
  std::shared_ptr<Communicator> new_subgroup(const std::string& name,
                                             const std::vector<int>& ranks) override {
    return std::make_shared<StagedCommunicator>(device_, inner().subgroup(name, ranks));
  }

 private:
  at::Device device_;
};

}  // namespace

std::shared_ptr<Communicator> make_device_communicator(const DeviceParts& parts) {
  return std::make_shared<DeviceCommunicator>(parts);
}

std::shared_ptr<Communicator> make_staged_communicator(at::Device device,
                                                       std::shared_ptr<Communicator> host) {
  return std::make_shared<StagedCommunicator>(device, std::move(host));
}

}  // namespace fsdp::comm
