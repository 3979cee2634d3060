#pragma once

// C10dBackend: shared memory as a backend of torch.distributed, for training by PyTorch itself (FSDP2, DDP).
// It needs nothing of Python; module.cpp registers it there.
//
// Each process group has its own memory, which its ranks find through the group's store. Collectives run in
// the order of issue: in the caller's thread if it waits for them anyway (asyncOp) and none is running,
// otherwise in threads of the group. Messages (send, recv) need neither order nor threads (mailboxes.h).
// wait() throws errors.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "comm/shm/host_ranks.h"
#include "torch_backend/c10d_work.h"
#include "torch_backend/mailboxes.h"
#include "torch_backend/tensor_collectives.h"

namespace fsdp::comm {

class C10dBackend : public c10d::Backend {
 public:
  static constexpr const char* kName = "fsdp_shm";

  /// Collective over the ranks of the group. Throws Error(kUsage) on all ranks if they cannot share memory:
  /// they must be on one host. `host` identifies this process's host.
  explicit C10dBackend(const c10d::DistributedBackendOptions& group, const HostRanks::Options& host = {});
  /// shutdown()
  ~C10dBackend() override;

  const std::string getBackendName() const override { return kName; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  /// Waits for the issued collectives. None can be issued afterwards.
  void shutdown() override;

  /// Tensors in shared memory, which collectives read in place.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  template <typename CallOptions>
  WorkPtr run(c10d::OpType type, const char* title, const CallOptions& options, Tensors outputs,
              std::function<void(TensorCollectives&)> body);
  double timeout_seconds() const;

  std::atomic<std::chrono::milliseconds> timeout_;
  std::shared_ptr<TensorCollectives> collectives_;
  std::shared_ptr<Mailboxes> mailboxes_;
  std::shared_ptr<C10dQueue> queue_;
};

}  // namespace fsdp::comm
