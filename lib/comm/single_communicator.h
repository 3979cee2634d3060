#pragma once

#include "comm/communicator.h"

namespace fsdp::comm {

/// A world of one: no network, no threads; an all-gather or reduce-scatter is at most a copy.
class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string backend_name() const override { return "none"; }
  std::unique_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   const CallSite& site) override;
  std::unique_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       const CallSite& site) override;
  std::unique_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, const CallSite& site) override;
  std::unique_ptr<Work> broadcast(const at::Tensor& tensor, int root, const CallSite& site) override;
  void barrier(const CallSite& site) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  std::shared_ptr<Communicator> subgroup(const std::string& name, const std::vector<int>& ranks) override;
};

}  // namespace fsdp::comm
