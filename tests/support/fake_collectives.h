#pragma once

// Collectives on tensors of fake devices, for ranks that are threads: what NCCL is to GPUs. The numbers are
// there at the call; what is written down is that each rank's current stream reads the input and writes the
// output. No host waits for a stream.

#include <ATen/ops/from_blob.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/api/stream_communicator.h"
#include "support/fake_device.h"
#include "support/forwarding_communicator.h"

namespace fsdp::testing {

class FakeCollectives final : public ForwardingCommunicator {
 public:
  using Access = FakeDevice::Access;

  template <typename Inner>
  FakeCollectives(at::Device device, Inner&& inner)
      : ForwardingCommunicator(std::forward<Inner>(inner)), device_(device) {}

  at::Device device() const override { return device_; }
  std::unique_ptr<comm::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                         const comm::CallSite& site) override {
    note(input, Access::kRead, "all_gather of " + site.unit);
    note(output, Access::kWrite, "all_gather of " + site.unit);
    return finished(inner().all_gather(on_host(output), on_host(input), site));
  }
  std::unique_ptr<comm::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                             const comm::CallSite& site) override {
    note(input, Access::kRead, "reduce_scatter of " + site.unit);
    note(output, Access::kWrite, "reduce_scatter of " + site.unit);
    return finished(inner().reduce_scatter(on_host(output), on_host(input), site));
  }
  std::unique_ptr<comm::Work> all_reduce(const at::Tensor& tensor, comm::ReduceOp op,
                                         const comm::CallSite& site) override {
    note(tensor, Access::kWrite, "all_reduce of " + site.unit);
    return finished(inner().all_reduce(on_host(tensor), op, site));
  }
  std::unique_ptr<comm::Work> broadcast(const at::Tensor& tensor, int root,
                                        const comm::CallSite& site) override {
    note(tensor, Access::kWrite, "broadcast of " + site.unit);
    return finished(inner().broadcast(on_host(tensor), root, site));
  }
  std::unique_ptr<comm::Work> shift(const at::Tensor& output, const at::Tensor& input,
                                    const comm::CallSite& site) override {
    note(input, Access::kRead, "shift of " + site.unit);
    note(output, Access::kWrite, "shift of " + site.unit);
    return finished(inner().shift(on_host(output), on_host(input), site));
  }

 protected:
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<FakeCollectives>(device_, std::move(group));
  }

 private:
  void note(const at::Tensor& tensor, Access access, const std::string& what) const {
    FakeDevice& fake = FakeDevice::get();
    fake.note_access(fake.current_stream(device_.index()), tensor.const_data_ptr(), tensor.nbytes(), access,
                     what);
  }

  static at::Tensor on_host(const at::Tensor& tensor) {
    return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                         at::TensorOptions().dtype(tensor.scalar_type()));
  }

  static std::unique_ptr<comm::Work> finished(std::unique_ptr<comm::Work> work) {
    work->wait();
    return comm::done_work();
  }

  at::Device device_;
};

/// The communicator of a rank that computes on the fake device of its number.
inline std::shared_ptr<comm::Communicator> on_fake_device(comm::Communicator& rank) {
  const at::Device device = FakeDevice::get().device(rank.rank());
  return comm::make_device_communicator(
      {device, borrowed(rank), std::make_shared<FakeCollectives>(device, rank)});
}

/// The same through host memory.
inline std::shared_ptr<comm::Communicator> staged_on_fake_device(comm::Communicator& rank) {
  const at::Device device = FakeDevice::get().device(rank.rank());
  return comm::make_device_communicator(
      {device, borrowed(rank), comm::make_staged_communicator(device, borrowed(rank))});
}

}  // namespace fsdp::testing
