#include "comm/device_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

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

class DeviceCommunicator final : public Communicator {
 public:
  explicit DeviceCommunicator(const DeviceParts& parts)
      : device_(parts.device),
        host_(parts.host),
        on_device_(parts.on_device),
        stream_({.name = "fsdp comm", .device = parts.device}) {
    FSDP_CHECK(!device_.is_cpu() && host_->world_size() == on_device_->world_size() &&
               host_->rank() == on_device_->rank());
  }

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  std::string backend_name() const override { return on_device_->backend_name(); }
  at::Device device() const override { return device_; }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    if (output.is_cpu()) return host_->all_gather(output, input, site);
    return issue([&] { on_device_->all_gather(output, input, site)->wait(); });
  }
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    if (output.is_cpu()) return host_->reduce_scatter(output, input, site);
    return issue([&] { on_device_->reduce_scatter(output, input, site)->wait(); });
  }
  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    if (tensor.is_cpu()) return host_->all_reduce(tensor, op, site);
    return issue([&] { on_device_->all_reduce(tensor, op, site)->wait(); });
  }
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    if (tensor.is_cpu()) return host_->broadcast(tensor, root, site);
    return issue([&] { on_device_->broadcast(tensor, root, site)->wait(); });
  }
  void barrier(const CallSite& site) override { host_->barrier(site); }

  std::unique_ptr<Work> enqueue(std::function<void()> task) override { return issue(std::move(task)); }
  std::unique_ptr<Work> enqueue_release(std::function<void()> task) override {
    return std::make_unique<ReleaseWork>(stream_.run([] {}), std::move(task));
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_));
  }
  at::Tensor allocate_on_host(int64_t numel, at::ScalarType dtype) override {
    return host_->allocate_on_host(numel, dtype);
  }

  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (ranks.size() == 1) {
      auto alone = std::make_shared<SingleCommunicator>();
      return make_device_communicator({device_, alone, alone});
    }
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    std::shared_ptr<Communicator> host = host_->subgroup(name, ranks);
    return make_device_communicator({device_, std::move(host), on_device_->subgroup(name, ranks)});
  }

 private:
  /// On the calling thread, before it returns.
  std::unique_ptr<Work> issue(std::function<void()> task) {
    return std::make_unique<StreamWork>(stream_.run(std::move(task)));
  }

  at::Device device_;
  std::shared_ptr<Communicator> host_, on_device_;
  util::Stream stream_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(at::Device device, std::shared_ptr<Communicator> host)
      : device_(device), host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int world_size() const override { return host_->world_size(); }
  std::string backend_name() const override { return host_->backend_name() + " through host memory"; }
  at::Device device() const override { return device_; }

  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override {
    at::Tensor whole = at::empty({output.numel()}, output.options().device(at::kCPU));
    host_->all_gather(whole, input.to(at::kCPU), site)->wait();
    output.copy_(whole);
    return done_work();
  }
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override {
    at::Tensor part = at::empty({output.numel()}, output.options().device(at::kCPU));
    host_->reduce_scatter(part, input.to(at::kCPU), site)->wait();
    output.copy_(part);
    return done_work();
  }
  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override {
    at::Tensor staged = tensor.to(at::kCPU);
    host_->all_reduce(staged, op, site)->wait();
    tensor.copy_(staged);
    return done_work();
  }
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override {
    at::Tensor staged = tensor.to(at::kCPU);
    host_->broadcast(staged, root, site)->wait();
    tensor.copy_(staged);
    return done_work();
  }
  void barrier(const CallSite& site) override { host_->barrier(site); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device_));
  }
  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    if (auto existing = existing_subgroup(name, ranks)) return existing;
    return std::make_shared<StagedCommunicator>(device_, host_->subgroup(name, ranks));
  }

 private:
  at::Device device_;
  std::shared_ptr<Communicator> host_;
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
